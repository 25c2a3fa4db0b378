"""The cost of a schedule: communication, computation, memory, and the timeline of an iteration."""

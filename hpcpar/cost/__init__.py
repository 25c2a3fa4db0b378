"""Cost of a schedule: computation, communication, memory, and the timeline of an iteration."""

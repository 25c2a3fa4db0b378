"""What a schedule costs: communication, computation, memory, and the timeline of an iteration."""

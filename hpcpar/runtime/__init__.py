"""One rank's program: memory arena, operators, parameters and executor."""

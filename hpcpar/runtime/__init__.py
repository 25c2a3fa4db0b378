"""One rank's program: memory arena, operators, parameters, the executor."""

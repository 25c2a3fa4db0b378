"""Timeline of an iteration: overlap of computation and communication, and pipelines."""

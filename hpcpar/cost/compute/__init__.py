"""The price of computation: work per step, and its time."""

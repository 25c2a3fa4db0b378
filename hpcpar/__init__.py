"""hpcpar: plan, predict, run and compare parallel training of convolutional networks."""

__version__ = "0.1.0"

"""The consequences of a plan: the steps of an iteration, and the one lowering that makes them."""

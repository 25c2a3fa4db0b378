"""The environment of every rank, and findings with remedies (``hpcpar doctor``)."""

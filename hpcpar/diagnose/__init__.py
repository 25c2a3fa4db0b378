"""Checks of every rank's environment, with a remedy for each problem (``hpcpar doctor``)."""

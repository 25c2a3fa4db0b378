"""Seeing it: tables, plots, predicted against measured."""

"""CuPy's functions after SciPy's."""

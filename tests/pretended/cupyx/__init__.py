"""As much of CuPy's extension package as the GPU backend uses."""

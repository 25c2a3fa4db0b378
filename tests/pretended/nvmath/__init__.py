"""As much of NVIDIA's bindings as the GPU backend uses."""

"""A pretended GPU: modules that stand in for CuPy and cuDNN.

With this folder first on ``PYTHONPATH`` the GPU backend, its streams and NCCL run on a machine
without a card: memory is the host's, kernels are the project's CUDA C compiled for the CPU, and
NCCL's messages go by MPI. Work is done as late as the order of streams and events allows, so that
a missing wait shows as a wrong result.
"""

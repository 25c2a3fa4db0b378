"""Executes communication steps by MPI or NCCL, and traces them. Only this room imports mpi4py."""

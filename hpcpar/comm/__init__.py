"""Doing the communication steps over MPI, and the trace of what was done. The only room that
imports mpi4py.
"""

"""Data sets: HDF5 files, loaders, prefetching, and importers for other formats."""

"""Data sets: HDF5 files, loaders, prefetching, importers of other formats."""

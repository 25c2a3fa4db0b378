"""Files: whole or not at all, checked against types, HDF5."""

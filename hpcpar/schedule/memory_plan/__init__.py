"""The memory of one rank, planned without allocating it: buffers, views, lifetimes, places."""

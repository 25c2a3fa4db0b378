"""One rank's memory, planned without allocating it: buffers, views, lifetimes, addresses."""

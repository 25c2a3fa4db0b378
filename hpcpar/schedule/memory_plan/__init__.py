"""Decides one rank's memory without allocating it: buffers, views, lifetimes, addresses."""

"""Timelines in files of other tools: Perfetto and Chakra."""

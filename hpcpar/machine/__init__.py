"""Machines: devices, levels of the interconnect, presets, and machine files."""

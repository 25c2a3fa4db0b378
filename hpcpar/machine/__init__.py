"""Where it runs: devices, levels of the interconnect, presets, machine files."""

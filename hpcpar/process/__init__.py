"""This process and those around it: signals, launchers, children."""

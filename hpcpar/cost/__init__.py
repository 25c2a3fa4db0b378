"""Decides what a schedule costs: computation, communication, memory, and the timeline."""

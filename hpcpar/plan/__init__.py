"""Splits of the work: index boxes, configurations, layouts, named strategies, the plan file."""

"""How the work is split: index boxes, configurations, layouts, named strategies, the plan file."""

"""What a schedule costs: alpha-beta formulas, compute time, memory, the two-stream timeline."""

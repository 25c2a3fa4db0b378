"""Networks to train: layers, the graph, shapes, flops and weights; no times and no ranks."""

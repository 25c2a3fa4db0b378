"""What is trained: layers, the graph, shapes, flops and weights. No time, no ranks."""

"""Networks of other formats: ONNX files and PyTorch modules."""

"""Readers of networks: ONNX files and PyTorch modules."""

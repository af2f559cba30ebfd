"""The tables of the papers, recomputed: training traffic, no ONNX."""

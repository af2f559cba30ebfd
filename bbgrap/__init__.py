"""Partition ONNX models over several CPU machines."""

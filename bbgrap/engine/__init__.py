"""The kernels: everything that imports onnxruntime."""

"""Programs for onnxruntime, run by bbgrap."""

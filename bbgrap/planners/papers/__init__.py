"""The papers' own objectives on their own network descriptions: training traffic, no ONNX. They show that we read the papers right."""

"""The distributed program: its steps, how tensors become bytes, its counts."""

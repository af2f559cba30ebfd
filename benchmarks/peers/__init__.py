"""What people would run instead of bbgrap, one peer a file; `python -m benchmarks.peers` compares them."""

"""`bbgrap serve` and its clients."""

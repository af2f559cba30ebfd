"""The planner that looks for the fastest plan: candidates, a search among their mixtures, and improvement against the clock."""

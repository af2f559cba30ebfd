"""The planner that looks for the fastest plan: candidates, and improvement of the best of them against the clock."""

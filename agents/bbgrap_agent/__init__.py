"""The process that runs on every machine and computes its part of a plan."""

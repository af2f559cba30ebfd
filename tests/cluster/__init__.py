"""Clusters of real processes."""

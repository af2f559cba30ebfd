"""Planners: from a graph and a cluster to a plan. One file a planner; `registry` names them; importing this package imports none."""

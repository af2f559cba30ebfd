"""The process that registers agents, plans, deploys and dispatches requests."""

"""The machines and what they can do."""

from bbgrap.cluster.types import Cluster, LinkProfile, NodeProfile

__all__ = ["Cluster", "LinkProfile", "NodeProfile"]

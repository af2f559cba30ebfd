"""The machines and what they can do."""

from bbgrap.cluster.types import Cluster, KernelRate, LinkProfile, NodeProfile

__all__ = ["Cluster", "KernelRate", "LinkProfile", "NodeProfile"]

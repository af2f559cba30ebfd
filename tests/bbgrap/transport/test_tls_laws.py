"""The locked data plane keeps the laws of the plain one, however long a busy machine takes to connect."""

import os

from bbgrap.transport import tls
from tests.bbgrap.transport.check_transport import check_transport
from tests.bbgrap.transport.locked import LockedCluster, forbidden


def test_the_laws_hold():
    check_transport(LockedCluster().open)


def test_the_laws_hold_for_who_computes():
    cluster = LockedCluster()
    check_transport(lambda: cluster.open(computes=True))


def test_the_laws_hold_where_a_sandbox_forbids_memory(monkeypatch):
    monkeypatch.setattr(os, "memfd_create", forbidden)
    check_transport(LockedCluster(shares_memory=True).open)


def test_the_laws_hold_where_memory_has_no_path(monkeypatch, tmp_path):
    """As where somebody made a folder the root of a system, without /proc: no locked process started there."""
    monkeypatch.setattr(tls, "_OWN_FILES", tmp_path / "proc")
    check_transport(LockedCluster().open)

"""A short campaign of real processes without networks of their own (`pytest -m campaign`; the long one: `make campaign`)."""

import pytest

from tests.campaign.real.__main__ import campaign
from tests.campaign.real.checker import check, read_histories

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(300)]

KINDS = ("agent killed", "nanny killed", "worker killed", "agent stopped", "coordinator killed", "killer model", "idle strangers")
KINDS += ("node revoked", "revoked and restarted", "client's token rotated", "client's token revoked", "join token rotated")
TASKS = ("send smooth 3 30 20",)


def test_a_minute_of_faults(tmp_path):
    files = campaign(tmp_path, 0.8, 1, agents=3, lan=False, kinds=KINDS, tasks=TASKS, watched=("smooth",))
    verdict = check(read_histories(files))
    # How long a recovery takes depends on what else this machine does: here it counts that all is answered, and all comes back.
    breaches = {kind: verdict.examples[kind] for kind in verdict.breaches if kind not in {"slow recovery", "nodes came back late"}}
    assert (breaches, verdict.faults.total() >= 4, verdict.answered > 500) == ({}, True, True)

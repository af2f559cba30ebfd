"""What is made of the times of two clusters, and that two that run the same plan can be compared."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bbgrap.errors import UsageError
from benchmarks import network
from benchmarks.lock_price import REST_PERCENT, prices
from benchmarks.network import parse_locks


def test_the_price_is_the_median_of_the_ratios_within_a_turn():
    found = prices({"tls": [0.011, 0.022, 0.033], "insecure": [0.010, 0.020, 0.030]})
    assert found["median_ms"] == {"tls": 22.0, "insecure": 20.0}
    assert (found["more_percent"], found["more_percent_quartiles"], found["more_ms"]) == (10.0, [10.0, 10.0], 2.0)
    slower_machine = prices({"tls": [0.011, 0.110, 0.011], "insecure": [0.010, 0.100, 0.010]})
    assert slower_machine["more_percent"] == 10.0
    assert prices({"tls": [0.011], "insecure": [0.010]})["more_percent_quartiles"] == [10.0, 10.0]


def test_two_locks_are_compared():
    assert parse_locks("tls, insecure") == ("tls", "insecure")
    for text in ("", "tls", "tls,tls", "tls,iron", "tls,plain,insecure", "tls,iron,plain"):
        with pytest.raises(UsageError, match="expected two of tls, plain, insecure"):
            parse_locks(text)


@pytest.mark.network
@pytest.mark.timeout(180)
def test_two_clusters_run_the_same_plan_over_an_emulated_link():
    command = [sys.executable, network.__file__, "--models", "tiny", "--links", "1gbit", "--planners", "bbgrap:rows", "--runs", "2"]
    done = subprocess.run([*command, "--locks", "tls,insecure", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["verified"]
    assert found["nodes_used"] == ["agent0", "agent1"]
    assert {lock: len(times) for lock, times in found["times_ms"].items()} == {"tls": 2, "insecure": 2}
    assert max(found["idle_percent"].values()) < REST_PERCENT

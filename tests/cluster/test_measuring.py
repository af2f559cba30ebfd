"""Real agents are measured: those at different addresses at once."""

import subprocess
import time

from tests.cluster.conftest import local_cluster


def test_machines_are_measured_at_once_and_links_in_turns(caches, tmp_path):
    with local_cluster(1, caches) as cluster:
        # Of this address nobody but this test knows that it is the same machine.
        elsewhere = ["bbgrap-agent", "--join", cluster.address, "--name", "other", "--advertise", "127.0.0.2", "--cache-dir", str(tmp_path)]
        with subprocess.Popen([*elsewhere, "--threads", "1"], stderr=subprocess.DEVNULL) as other:
            try:
                while len(cluster.connection.nodes()) < 2:
                    time.sleep(0.05)
                stages = []
                profiles = cluster.connection.profile(on_progress=lambda now: stages.append((now.stage, now.done, now.total)))
            finally:
                other.terminate()
    assert stages[0] == ("measuring agent0, other", 0, 2)
    assert sorted(stage for stage, _, _ in stages[1:]) == ["measuring links of agent0", "measuring links of other"]
    assert [done for _, done, _ in stages[1:]] == [0, 1]
    assert [(profile.name, {link.peer for link in profile.links}) for profile in profiles] == [
        ("agent0", {"coordinator", "other"}),
        ("other", {"coordinator", "agent0"}),
    ]
    assert all(profile.work for profile in profiles)

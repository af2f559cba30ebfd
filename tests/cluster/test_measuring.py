"""Real agents are measured at once (a single one of two is measured in `tests/bbgrap/cli/test_cluster_commands.py`)."""

import pytest


@pytest.mark.slow
def test_nodes_are_measured_at_once_and_links_in_turns(fresh):
    stages = []
    profiles = fresh.connection.profile(on_progress=lambda now: stages.append((now.stage, now.done, now.total)))
    assert stages[0] == ("measuring agent0, agent1", 0, 2)
    assert stages[1][0] in {"measuring agent0", "measuring agent1"}
    assert sorted(stage for stage, _, _ in stages[2:]) == ["measuring links of agent0", "measuring links of agent1"]
    assert [done for _, done, _ in stages[1:]] == [1, 0, 1]
    assert [(profile.name, {link.peer for link in profile.links}) for profile in profiles] == [
        ("agent0", {"coordinator", "agent1"}),
        ("agent1", {"coordinator", "agent0"}),
    ]
    assert all(profile.work for profile in profiles)

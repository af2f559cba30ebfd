"""The tables of legal moves."""

import pytest

from bbgrap.control.lifecycles import TABLES, Lifecycle, Tracker
from bbgrap.errors import LocalProtocolError, RemoteProtocolError


@pytest.mark.parametrize("role", Lifecycle)
def test_every_target_is_a_state_and_every_state_is_reached(role):
    table = TABLES[role]
    targets = {target for moves in table.values() for target in moves.values()}
    assert targets <= set(table)
    assert set(table) <= targets | {next(iter(table))}


@pytest.mark.parametrize("role", Lifecycle)
def test_every_role_can_come_to_an_end(role):
    table = TABLES[role]
    ended = {state for state, moves in table.items() if not moves}
    assert ended
    for _ in table:
        ended |= {state for state, moves in table.items() if set(moves.values()) & ended}
    assert ended == set(table)


def test_an_illegal_move_says_who_where_and_how_it_came_to_that():
    variant = Tracker(Lifecycle.VARIANT, "epoch 7")
    variant.move("load")
    variant.move("released")
    with pytest.raises(RemoteProtocolError) as remote:
        variant.move("Deployed")
    assert str(remote.value) == (
        "variant as the coordinator sees it, epoch 7: got 'Deployed' while ended; expected nothing any more; "
        "before: load -> loading, released -> ended"
    )
    with pytest.raises(LocalProtocolError, match="expected Deployed, DeploymentFailed, WeightsMissing, agent away, load, released"):
        Tracker(Lifecycle.VARIANT, "epoch 8").move("all loaded")

"""The order of nodes' names."""

from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster.names import name_order
from bbgrap.control.membership import Members
from bbgrap.control.saved_state import SavedState
from tests.bbgrap.control.test_membership import SETTINGS
from tests.bbgrap.control.wire import introduction

NAMES = st.text(st.sampled_from("ab-09150٣é"), max_size=8)


def test_numbers_in_names_count_as_numbers():
    names = ["agent2", "agent10", "agent1", "10.0.0.9", "10.0.0.10", "b", "a", "rack2-node10", "rack2-node9", "rack10-node1"]
    expected = ["10.0.0.9", "10.0.0.10", "a", "agent1", "agent2", "agent10", "b", "rack2-node9", "rack2-node10", "rack10-node1"]
    assert sorted(names, key=name_order) == expected
    assert sorted(["9" * 5000, "1" + "0" * 5000], key=name_order)[0] == "9" * 5000


@given(st.lists(NAMES, unique=True))
def test_the_order_is_one_whoever_came_first(names):
    backwards = names[::-1]
    assert sorted(names, key=name_order) == sorted(backwards, key=name_order)
    assert len({name_order(name) for name in names}) == len(names)


@given(st.lists(st.integers(0, 9), unique=True))
def test_names_with_equally_many_digits_stand_as_they_always_did(numbers):
    names = [f"agent{number}" for number in numbers]
    assert sorted(names, key=name_order) == sorted(names)


def test_agents_are_devices_in_that_order():
    members = Members(SETTINGS, SavedState())
    for number in (10, 2, 1):
        name = f"agent{number}"
        members.join(name.encode(), introduction(name), 0.0)
    assert [node.name for node in members.cluster(members.alive()).nodes] == ["agent1", "agent2", "agent10"]

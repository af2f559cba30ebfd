"""What may be asked of a planner."""

import pytest

from bbgrap.errors import UsageError
from bbgrap.planners.options import MAX_SEARCH_SECONDS, MAX_TOP, PlanOptions


@pytest.mark.parametrize("top", [(("logits", 0),), (("logits", -1),), (("logits", MAX_TOP + 1),), (("logits", 1), ("logits", 2))])
def test_of_an_output_once_some_elements_are_wanted(top):
    with pytest.raises(UsageError, match=r"top( 'logits': expected from 1 to 1048576 elements, got|: an output is listed twice)"):
        PlanOptions(top=top)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 3601.0, 1e308, float("inf"), float("nan")])
def test_a_search_ends_within_an_hour(seconds):
    with pytest.raises(UsageError, match="search seconds: expected a number above 0, at most 3600, got"):
        PlanOptions(search_seconds=seconds)
    assert PlanOptions(search_seconds=MAX_SEARCH_SECONDS).search_seconds == 3600

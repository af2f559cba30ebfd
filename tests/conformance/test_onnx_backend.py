"""The ONNX standard's own backend tests, over three in-process devices: exactly the tests that plain onnxruntime passes pass.

Each test is run twice, by plain onnxruntime and by the partition, and the two verdicts are compared; nothing is listed by hand.
"""

from __future__ import annotations

import pytest

from bbgrap.backend import BbgrapBackend
from tests.conformance.suite import outcomes, plain_outcomes

AS_GIVEN_SPLIT, CONSTANT_SPLIT = 1100, 1200
"""At least so many of the passing tests must really run over more than one device."""

ONE_OF = 20
"""The default suite runs one of so many tests; `make test-conformance` runs all."""

pytestmark = pytest.mark.usefixtures("backend_tests")

FORMS = pytest.mark.parametrize(
    ("constants", "least_split"), [(False, AS_GIVEN_SPLIT), (True, CONSTANT_SPLIT)], ids=["as-given", "constants"]
)


def compare(constants: bool, least_split: float, one_of: int = 1) -> None:
    plain = plain_outcomes(constants=constants, one_of=one_of)
    ours = outcomes(BbgrapBackend, constants=constants, one_of=one_of)
    differing = {name: (plain[name].verdict, now.verdict, now.reason) for name, now in ours.items() if plain[name].verdict != now.verdict}
    assert not differing, "\n".join(f"{name}: plain onnxruntime {p}, the partition {o}: {r}" for name, (p, o, r) in differing.items())
    assert sum(was.verdict == "passes" for was in plain.values()) > 1400 / one_of, "the suite itself did not run"
    assert sum(now.verdict == "passes" and now.split_nodes > 0 for now in ours.values()) >= least_split / one_of


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("constants", "least_split"),
    [pytest.param(False, AS_GIVEN_SPLIT, id="as-given"), pytest.param(True, CONSTANT_SPLIT, id="constants", marks=pytest.mark.broad)],
)
def test_some_of_what_plain_onnxruntime_passes(constants: bool, least_split: int) -> None:
    compare(constants, 0.9 * least_split, ONE_OF)


@pytest.mark.conformance
@pytest.mark.timeout(1800)
@FORMS
def test_exactly_what_plain_onnxruntime_passes(constants: bool, least_split: int) -> None:
    compare(constants, least_split)

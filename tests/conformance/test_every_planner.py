"""The backend tests through every planner and split over 2, 3 and 5 devices: plain onnxruntime's own answers.

The default suite runs a fixed part: some tests in some configurations, so that each configuration and each kind of test has its turn.
`make test-conformance` runs every test that plain onnxruntime passes in every configuration.
"""

from __future__ import annotations

import re
from zlib import crc32

import pytest

from tests.conformance.planners import CONFIGURATIONS, Configuration, Tally, examined
from tests.conformance.suite import Run, plain_outcomes

LIGHT = re.compile("test_(bvlc_alexnet|densenet121|inception_v[12]|resnet50|shufflenet|squeezenet|vgg19|zfnet512)_cpu")
"""Whole networks all of whose weights are 0.02: their logits are equal and so large that a last bit moves the softmax. With other weights
they are in `test_light_models`."""

ONE_OF, PLACE = 10, 5
"""So many tests share a place in the default suite, and at which; `test_onnx_backend` runs those at another one."""

TURNS = 3
"""Configurations that a test of the default suite runs in."""

pytestmark = pytest.mark.usefixtures("backend_tests")

AS_GIVEN_SPLIT, CONSTANT_SPLIT = 0.35, 0.40
"""Parts of all runs in which at least one node must really be split."""

FORMS = pytest.mark.parametrize(("constants", "least"), [(False, AS_GIVEN_SPLIT), (True, CONSTANT_SPLIT)], ids=["as-given", "constants"])


def passing(*, constants: bool, one_of: int = 1, place: int = 0) -> dict[str, Run]:
    """Return what plain onnxruntime ran in the tests that it passes, by test and number of the run."""
    found = {name: o for name, o in plain_outcomes(constants=constants, one_of=one_of, place=place).items() if not LIGHT.fullmatch(name)}
    return {f"{name} {number}": run for name, o in found.items() if o.verdict == "passes" for number, run in enumerate(o.runs)}


def table(tallies: dict[Configuration, Tally]) -> str:
    return "\n".join(f"{configuration}: {dict(tally.counts)}" for configuration, tally in tallies.items())


def check(tallies: dict[Configuration, Tally], least: float) -> None:
    print(table(tallies))  # noqa: T201 - shown with `pytest -rP`
    wrong = [f"{name}, {configuration}: {how}" for configuration, tally in tallies.items() for name, how in tally.wrong.items()]
    assert not wrong, "\n".join(wrong[:50])
    runs = sum(tally.counts.total() for tally in tallies.values())
    assert sum(tally.counts["split"] for tally in tallies.values()) >= least * runs, table(tallies)


def turns(name: str) -> list[Configuration]:
    """Return the configurations of a test in the default suite: neighbours in a row that begins somewhere else for every test."""
    return [CONFIGURATIONS[(crc32(name.encode()) // ONE_OF + 16 * turn) % len(CONFIGURATIONS)] for turn in range(TURNS)]


@pytest.mark.broad
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value encountered:RuntimeWarning")
@FORMS
def test_some_tests_in_some_configurations(constants: bool, least: float) -> None:
    tallies = {configuration: Tally() for configuration in CONFIGURATIONS}
    for name, run in passing(constants=constants, one_of=ONE_OF, place=PLACE).items():
        for configuration, tally in examined({name: run}, turns(name)).items():
            tallies[configuration].add(tally)
    assert all(tally.counts for tally in tallies.values()), "a configuration had no test"
    check(tallies, least)


@pytest.mark.conformance
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value encountered:RuntimeWarning")
@FORMS
def test_every_test_in_every_configuration(constants: bool, least: float) -> None:
    tests = passing(constants=constants)
    assert len(tests) > 1400, "the suite itself did not run"
    check(examined(tests, CONFIGURATIONS), least)

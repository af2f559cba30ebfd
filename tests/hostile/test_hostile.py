"""Hostile models by seed against a cluster that serves somebody else: nobody else notices (all of them: python -m tests.hostile)."""

import random
from contextlib import suppress

import pytest

from bbgrap.errors import BbgrapError
from bbgrap.graph.onnx_read import read_model
from tests.hostile.__main__ import run
from tests.hostile.kinds import KINDS, RARE_EVERY, make

PATIENCE_S = 60.0
"""Deadline of requests here: what counts is how they end, also on a busy machine."""
QUICK = (0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 17, 18, 20, 24)
"""Seeds of small models that end."""

EMPTY = 431
"""A DepthToSpace into no channels: in a plan a map without elements is not computed, and onnxruntime would refuse to."""


@pytest.mark.faults
@pytest.mark.cluster
def test_some_hostile_models_harm_nobody():
    outcomes, faults = run(QUICK, seconds=PATIENCE_S)
    assert faults == []
    assert {outcome.how for outcome in outcomes} == {"refused", "agrees"}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_hostile_models_harm_nobody():
    seeds = [seed for seed in range(1001) if seed != EMPTY]
    outcomes, faults = run(seeds, seconds=PATIENCE_S)
    assert (len(outcomes), faults) == (1000, [])


def test_seeds_make_every_kind_and_the_same_model_again(tmp_path):
    kinds = set()
    for seed in range(RARE_EVERY - 1):
        (tmp_path / str(seed)).mkdir()
        made = make(seed, tmp_path / str(seed))
        kinds.update(made.kind.split("+"))
        content = made.path.read_bytes()
        assert make(seed, tmp_path / str(seed)).path.read_bytes() == content
    assert kinds >= set(KINDS)


@pytest.mark.parametrize("seed", random.Random(0).sample(range(100_000), 60))
def test_reading_them_here_is_refused_in_words_or_not_at_all(tmp_path, seed):
    if seed % RARE_EVERY == RARE_EVERY - 1:
        seed += 1
    with suppress(BbgrapError):
        read_model(make(seed, tmp_path).path)

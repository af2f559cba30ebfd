"""Measuring decoders: what is no decoder is refused, and who answers otherwise is told so."""

import pytest

from bbgrap.errors import ModelError, UsageError
from bbgrap.planners.options import PlanOptions
from bbgrap.tokens import measure_tokens
from bbgrap.zoo import materialize
from tests.hybrid_models import hybrid
from tests.known_agents import known_cluster

TRIES = 3
"""A busy machine may make a sequence run again on the standby."""


@pytest.fixture(scope="module")
def empty_pair(tmp_path_factory):
    """Two agents without models of other tests: where nodes are full, a decoder's standby makes room, and words are written elsewhere."""
    with known_cluster(2, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        yield cluster


@pytest.mark.cluster
@pytest.mark.parametrize("top", [0, *(pytest.param(top, marks=pytest.mark.broad) for top in (1, 5))])
def test_a_decoder_writes_what_plain_onnxruntime_does(empty_pair, top):
    for _ in range(TRIES):
        report = measure_tokens(
            materialize("tiny-decoder"), empty_pair.connection, [PlanOptions("tensor-parallel")], tokens=20, prompt=5, top=top
        )
        (result,) = report["results"]
        assert result["verified"]
        if not result["elsewhere"]:
            break
    assert result["elsewhere"] == 0
    assert 0 < result["max_rel_err"] < 1e-4
    assert result["nodes_used"] == ["agent0", "agent1"]
    assert max(result["weight_bytes"].values()) < 0.55 * materialize("tiny-decoder").stat().st_size
    assert (result["top"], result["bytes_answered"]) == (top, 12 * top or 4 * 1000)
    assert result["tokens_per_s"] > 0 < report["single_node"]["tokens_per_s"]


@pytest.mark.cluster
def test_places_of_pictures_and_caches_of_the_last_words_are_understood(empty_pair, tmp_path):
    (tmp_path / "hybrid.onnx").write_bytes(hybrid())
    report = measure_tokens(tmp_path / "hybrid.onnx", empty_pair.connection, [PlanOptions("tensor-parallel")], tokens=12, prompt=5)
    (result,) = report["results"]
    assert result["verified"]
    assert result["nodes_used"] == ["agent0", "agent1"]


@pytest.mark.cluster
@pytest.mark.faults
def test_words_that_the_plan_did_not_write_are_counted(tmp_path):
    def lose(line):
        if line.startswith("word 0 "):
            cluster.kill("agent1")

    with known_cluster(2, tmp_path) as cluster:
        options = [PlanOptions("tensor-parallel")]
        report = measure_tokens(materialize("tiny-decoder"), cluster.connection, options, tokens=40, prompt=5, report=lose)
    (result,) = report["results"]
    assert result["verified"]
    assert 0 < result["elsewhere"] < 41


@pytest.mark.cluster
def test_what_is_no_decoder_is_refused(empty_pair):
    with pytest.raises(UsageError, match=r"expected a decoder with one input of words .*; got inputs input, outputs output"):
        measure_tokens(materialize("voice"), empty_pair.connection, [PlanOptions("single")], tokens=5, prompt=2)


@pytest.mark.cluster
def test_more_words_than_a_model_has_places_for_are_refused_in_words(empty_pair):
    with pytest.raises(ModelError, match=r"takes no 1 words after 128: .* out of data bounds.*; .* ask for fewer words"):
        measure_tokens(materialize("tiny-decoder"), empty_pair.connection, [PlanOptions("single")], tokens=20, prompt=120)

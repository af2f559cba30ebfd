"""Measuring decoders: what is no decoder is refused, and who answers otherwise is told so."""

import pytest

import bbgrap
from bbgrap.errors import UsageError
from bbgrap.planners.options import PlanOptions
from bbgrap.tokens import measure_tokens
from bbgrap.zoo import materialize


@pytest.fixture(scope="module")
def two():
    with bbgrap.LocalCluster(agents=2) as cluster:
        yield cluster.connection


@pytest.mark.cluster
@pytest.mark.parametrize("top", [0, 1, 5])
def test_a_decoder_writes_what_plain_onnxruntime_does(two, top):
    report = measure_tokens(materialize("tiny-decoder"), two, [PlanOptions("tensor-parallel")], tokens=20, prompt=5, top=top)
    (result,) = report["results"]
    assert result["verified"]
    assert 0 < result["max_rel_err"] < 1e-4
    assert result["nodes_used"] == ["agent0", "agent1"]
    assert max(result["weight_bytes"].values()) < 0.55 * materialize("tiny-decoder").stat().st_size
    assert (result["top"], result["bytes_answered"]) == (top, 12 * top or 4 * 1000)
    assert result["tokens_per_s"] > 0 < report["single_node"]["tokens_per_s"]


@pytest.mark.cluster
def test_what_is_no_decoder_is_refused(two):
    with pytest.raises(UsageError, match=r"expected a decoder with one input of words .*; got inputs input, outputs output"):
        measure_tokens(materialize("voice"), two, [PlanOptions("single")], tokens=5, prompt=2)

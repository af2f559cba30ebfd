"""Large outputs between real processes: what several messages of one request brought stays until all of it is joined. And large inputs."""

import numpy as np
import pytest

import bbgrap
from bbgrap.engine.sessions import make_session
from bbgrap.errors import InputError
from bbgrap.graph.onnx_write import write_graph
from bbgrap.planners.options import PlanOptions
from bbgrap.session import remote_model
from bbgrap.zoo.builder import Builder

pytestmark = pytest.mark.cluster

SHAPE = (1, 8, 128, 128)


@pytest.mark.parametrize("split", ["rows", pytest.param("channels", marks=pytest.mark.broad)])
def test_several_large_outputs_of_one_request_stay_apart(split, pair):
    net, names = Builder("outputs", SHAPE), ["input"]
    for number in range(4):
        names.append(net.conv(names[-1], f"y{number}", 8, 3))  # the next one needs halos, so this one leaves on its own
    del names[0]
    model = write_graph(net.graph(*names), weights="inline").data
    reference = make_session(model)
    session = bbgrap.InferenceSession(model, cluster=pair, options=PlanOptions("bbgrap", split))
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
        for name, got, expected in zip(names, session.run(names, {"input": x}), reference.run(names, {"input": x}), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_an_input_that_is_too_large_for_a_request_is_refused_at_once(pair, monkeypatch):
    session = bbgrap.InferenceSession("zoo:tiny", cluster=pair)
    x = np.zeros((1, 3, 32, 32), np.float32)
    session.run(None, {"input": x})
    monkeypatch.setattr(remote_model, "MAX_TENSOR_BYTES", x.nbytes - 1)
    with pytest.raises(InputError, match="input 'input': 12,288 bytes; a request takes 12,287 in one input"):
        session.run(None, {"input": x})

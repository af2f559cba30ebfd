"""An agent loads a standby as plain onnxruntime would load the file."""

import numpy as np
import pytest
from bbgrap_agent.loading import load
from bbgrap_agent.weights import WeightStore

from bbgrap.engine.sessions import make_session
from bbgrap.engine.standby import standby_of
from bbgrap.protocol.messages import Deploy
from tests.quantized_models import converted, networks


@pytest.mark.parametrize("form", ["qdq-u8s8-channels", "float16"])
def test_the_answers_are_those_of_the_file(tmp_path, form):
    path, x = converted(form, *networks(tmp_path)["attention"])
    (device,) = standby_of(path).artifacts.devices
    store = WeightStore(tmp_path)
    for digest, array in standby_of(path).artifacts.weights.items():
        store._keep(digest, array)
    deployment = load(Deploy(1, (), device.schedule, device.segments), store, 1, "127.0.0.1")
    (got,) = deployment.segments[0]([x])
    (want,) = make_session(path, threads=1).run(None, {"input": x})
    np.testing.assert_array_equal(got, want)

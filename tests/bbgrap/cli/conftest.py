import json

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner

from bbgrap.cli.main import app
from tests.bbgrap.cli.models import convolution
from tests.judged_models import MODELS
from tests.onnx_models import write_model


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_surroundings(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("BBGRAP_COORDINATOR", raising=False)


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def run_json(run):
    def read(*args):
        result = run(*args, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return read


@pytest.fixture
def image_model(tmp_path):
    """One convolution over [N, 3, 8, 10]."""
    node, weight = convolution()
    return write_model(tmp_path / "image.onnx", [node], {"x": ["N", 3, 8, 10]}, {"y": ["N", 4, 8, 10]}, weight)


@pytest.fixture
def ill_conditioned(tmp_path):
    """A classifier of 256 numbers that is as good as its roundings: cut by rows its answer moves by some 1e-3."""
    path = tmp_path / "ill.onnx"
    next(model for model in MODELS if model.name == "ill_conditioned").write(path)
    np.save(tmp_path / "bytes.npy", np.random.default_rng(0).integers(0, 2, (1, 256)).astype(np.int32))
    return path


@pytest.fixture
def two_inputs(tmp_path):
    """A sum of two inputs [batch, length]."""
    free = ["batch", "length"]
    return write_model(tmp_path / "two.onnx", [helper.make_node("Add", ["a", "b"], ["c"])], {"a": free, "b": free}, {"c": free})

"""One cluster for the commands and snippets of the documents, started by the documents' own commands."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from bbgrap.graph.onnx_io import save_graph
from bbgrap.session import connect
from bbgrap.zoo import materialize
from bbgrap.zoo.builder import Builder
from tests.docs.documents import ROOT
from tests.onnx_models import write_model
from tests.sequence_models import decoder
from tests.waiting import until

HEAD = "tcp://192.168.1.10:7070"
"""The coordinator's address in the documents."""
COORDINATOR = f"bbgrap-coordinator --bind {HEAD}"
AGENTS = {name: f"bbgrap-agent --join {HEAD} --name {name}" for name in ("left", "right")}


@pytest.fixture(scope="package")
def folder(tmp_path_factory) -> Path:
    """A folder with the files that the documents name: small models, inputs, cluster files."""
    made = tmp_path_factory.mktemp("docs")
    for name in ("cache", "home"):
        (made / name).mkdir()
    tiny = onnx.load(materialize("tiny", made / "cache" / "bbgrap" / "zoo"))
    onnx.save(tiny, made / "resnet50.onnx")
    onnx.save(with_input(tiny, "x"), made / "model.onnx")
    net = Builder("small", (1, 3, 32, 32))
    save_graph(net.graph(net.conv(net.act("Relu", net.conv("input", "first", 8, 3), "relu"), "second", 4, 3)), made / "small.onnx")
    node = helper.make_node("Relu", ["tokens"], ["y"], "relu")
    write_model(made / "text.onnx", [node], {"tokens": ["N", 128]}, {"y": ["N", 128]})
    free = ["N", 3, "H", "W"]
    write_model(made / "yolo.onnx", [helper.make_node("Relu", ["images"], ["boxes"], "relu")], {"images": free}, {"boxes": free})
    (made / "decoder.onnx").write_bytes(decoder())
    for name in ("cat.jpg", "dog.jpg", "street.jpg"):
        Image.new("RGB", (64, 48), (200, 100, 50)).save(made / name)
    for name in ("x.npy", "image.npy"):
        np.save(made / name, picture())
    for name in ("left", "right"):  # with speeds nobody needs to measure them
        (made / f"{name}.profile.yaml").write_text(
            f"name: {name}\nwork: {{conv3x3: 100 GFLOP/s, conv1x1: 90 GFLOP/s, matmul: 80 GFLOP/s}}\n"
        )
    (made / "program.py").write_text("import onnxruntime\n\nonnxruntime.InferenceSession('model.onnx').get_inputs()\n")
    (made / "models").mkdir()
    (made / "models" / "text.onnx").symlink_to(made / "text.onnx")
    (made / "deploy").symlink_to(ROOT / "deploy")
    clusters = ROOT / "deploy" / "clusters"
    (made / "cluster.yaml").write_bytes((clusters / "two-equal.yaml").read_bytes())
    (made / "big.yaml").write_bytes((clusters / "raspberry-pi.profile.yaml").read_bytes())
    return made


def with_input(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model whose only input is called so."""
    renamed = onnx.ModelProto.FromString(model.SerializeToString())
    before = renamed.graph.input[0].name
    renamed.graph.input[0].name = name
    for node in renamed.graph.node:
        node.input[:] = [name if given == before else given for given in node.input]
    return renamed


def picture(count: int = 1) -> np.ndarray:
    return np.random.default_rng(0).random((count, 3, 32, 32), np.float32)


@pytest.fixture(scope="package")
def environment(folder) -> dict[str, str]:
    """The surroundings of a process that keeps nothing elsewhere."""
    return {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "BBGRAP_COORDINATOR": "", "XDG_CONFIG_HOME": str(folder / "config")}


@pytest.fixture(scope="package")
def address(folder, environment) -> Iterator[str]:
    """The address of a cluster of two agents, `left` and `right`, started as the README says."""
    started = []

    def start(command: str, where: str, more: str) -> None:
        words = shlex.split(f"{command.replace(HEAD, where)} {more}")
        with (folder / f"{len(started)}.log").open("wb") as log:
            started.append(subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log))

    try:
        start(COORDINATOR, "tcp://127.0.0.1:0", "--ready-file ready")
        until(lambda: (folder / "ready").exists())
        where = (folder / "ready").read_text()
        for name, command in AGENTS.items():
            start(command, where, f"--threads 1 --profile {name}.profile.yaml")
        with connect(where) as connection:
            until(lambda: len(connection.nodes()) == 2)
            connection.create_token("guest", "reader")
        yield where
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            assert process.wait(10) == 0

"""A cluster of one agent, and servers on it: real processes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import TensorProto

from tests.known_agents import known_cluster
from tests.sequence_models import lstm
from tests.serving.clients import Grpc, Http
from tests.serving.models import write_rows, write_sequence, write_slow, write_types
from tests.waiting import until


class Server:
    """A process of `bbgrap serve`."""

    def __init__(self, coordinator: str, models: Path, log: Path, *options: str) -> None:
        self.log = log
        words = ["serve", "--models", str(models), "--http", "127.0.0.1:0", "--planner", "single", "--coordinator", coordinator, *options]
        command = [sys.executable, "-c", "from bbgrap.cli.main import run; run()", *words]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "COLUMNS": "80"})
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url.startswith("http://"):
            self.end()
            raise AssertionError(log.read_text())
        found = re.search(r"gRPC at (\S+);", self.said("Ctrl-C"))
        self.grpc = found[1] if found else ""

    def said(self, text: str) -> str:
        until(lambda: text in self.log.read_text())
        return self.log.read_text()

    @contextlib.contextmanager
    def http(self) -> Iterator[Http]:
        client = Http(self.url)
        try:
            yield client
        finally:
            client.connection.close()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def serving(coordinator: str, models: Path, log: Path, *options: str) -> Iterator[Server]:
    server = Server(coordinator, models, log, *options)
    try:
        yield server
    except BaseException:
        print(log.read_text())  # noqa: T201 - pytest shows it with the failure
        raise
    finally:
        server.end()


@pytest.fixture(scope="package")
def models(tmp_path_factory) -> Path:
    """A folder of models, one of them in Triton's layout, one that cannot be served, and one that is no model."""
    folder = tmp_path_factory.mktemp("models")
    write_types(folder / "types.onnx")
    write_types(folder / "bfloat16.onnx", {"BF16": TensorProto.BFLOAT16, "FP32": TensorProto.FLOAT})
    write_rows(folder / "rows.onnx")
    write_slow(folder / "slow.onnx")
    write_sequence(folder / "sequence.onnx")
    (folder / "lstm.onnx").write_bytes(lstm())
    for version in ("1", "12", "3"):
        write_rows(folder / "triton" / version / "model.onnx")
    (folder / "broken.onnx").write_bytes(b"no model")
    (folder / "notes.txt").write_text("no model either")
    return folder


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    with known_cluster(1, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def served(cluster, models, tmp_path_factory) -> Iterator[Server]:
    """A server that the tests leave as it was; it takes bodies up to 1 MiB."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(cluster.address, models, log, "--grpc", "127.0.0.1:0", "--max-body", "1", "--state", "lstm") as server:
        yield server


@pytest.fixture
def http(served) -> Iterator[Http]:
    with served.http() as client:
        yield client


@pytest.fixture
def rpc(served) -> Iterator[Grpc]:
    client = Grpc(served.grpc)
    yield client
    client.channel.close()

"""What `bbgrap serve` says before it serves."""

import socket
import sys

import pytest
from typer.testing import CliRunner

from bbgrap.cli.main import app
from tests.serving.conftest import Server

PLACE = ["--http", "127.0.0.1:0"]


def said(*words):
    result = CliRunner().invoke(app, ["serve", *words])
    return result.exit_code, result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "which models? give some, or a folder of them with --models DIR"),
        (["nix.onnx"], "model 'nix.onnx': there is no file nix.onnx"),
        (["--models", "nix"], "--models nix: there is no such folder"),
        (["{rows}", "{rows}"], "there is a 'rows' already; name one of them otherwise: OTHER="),
        (["a/b={rows}"], "expected a name without '/'"),
        (["{rows}", "--http", "8000"], "--http: expected HOST:PORT, like 127.0.0.1:8000, got '8000'"),
        (["{rows}", "--http", "127.0.0.1:{taken}"], "another port is chosen with --http 127.0.0.1:PORT"),
        (["{rows}", "--http", "192.0.2.1:8000"], "give an address or a name of this machine"),
        (["{rows}", *PLACE, "--grpc", "127.0.0.1"], "--grpc: expected HOST:PORT, like 127.0.0.1:8000, got '127.0.0.1'"),
        (["{rows}", *PLACE], "which cluster?"),
        (["{rows}", "--state", "rows=x"], "state 'x': expected auto, or INPUT:OUTPUT,..."),
        (["{rows}", "--state", "rows", "--state", "rows=x:y"], "'rows' is there twice"),
        (["{rows}", "--state", "other"], "--state other: no model is called so; there are rows"),
        (["{rows}", *PLACE, "--otlp", "ftp://x"], "--otlp ftp://x: expected a URL"),
        (["{rows}", *PLACE, "--otlp", "http://"], "--otlp http://: expected a URL"),
    ],
)
def test_what_cannot_be_served_is_one_line(models, monkeypatch, words, expected):
    monkeypatch.delenv("BBGRAP_COORDINATOR", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {"rows": models / "rows.onnx", "taken": taken.getsockname()[1]}
        code, text = said(*(word.format(**values) for word in words))
    assert (code, expected in text) == (2, True), text


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_without_its_packages_it_says_what_to_install(models, monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith(("bbgrap.serving", f"{package}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, text = said(str(models / "rows.onnx"), *PLACE)
    assert (code, f"serve: {package} is not installed: pip install 'bbgrap[serve]'" in text) == (2, True), text


@pytest.mark.cluster
def test_a_named_model_that_cannot_be_served_ends_it(cluster, models, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(AssertionError, match="no such type"):
        Server(cluster.address, tmp_path / "none", tmp_path / "log", str(models / "sequence.onnx")).end()

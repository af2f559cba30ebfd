"""A folder of models: listed, loaded and unloaded by clients, who never name a path."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import json_format

from bbgrap.errors import AccessError, ModelError
from bbgrap.graph.onnx_read import read_model
from bbgrap.serving import grpc_schema
from bbgrap.serving.refusals import Refusal, RefusedError
from bbgrap.serving.repository import Repository
from tests.serving.clients import Grpc
from tests.serving.conftest import serving
from tests.serving.models import write_rows, write_slow
from tests.serving.test_life import X

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(("name", "look"), [("lost+found", "iterdir"), ("private.onnx", "is_file")])
def test_what_may_not_be_looked_into_keeps_nothing_else_from_being_served(tmp_path, monkeypatch, name, look):
    """As `lost+found` of a volume is for all but root, and a link into another user's home."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "private.onnx").symlink_to("/nowhere")
    write_rows(tmp_path / "rows.onnx")
    looked = getattr(Path, look)

    def refused(path):
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return looked(path)

    monkeypatch.setattr(Path, look, refused)
    repository = Repository({}, tmp_path, lambda entry: read_model(entry.path))
    assert repository.load_all().keys() == {name.removesuffix(".onnx")}
    assert repository.models.keys() == {"rows"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' names are texts")
def test_a_file_whose_name_is_no_text_keeps_nothing_out_of_the_listing(tmp_path):
    """As one written by a system with Latin-1: no message of gRPC took the listing, and JSON had what is no letter."""
    write_rows(tmp_path / "rows.onnx")
    content = (tmp_path / "rows.onnx").read_bytes()
    for odd in (tmp_path / "gr\udcfcn.onnx", tmp_path / "blau\udce9" / "1" / "model.onnx"):  # how Python writes single bytes
        odd.parent.mkdir(parents=True, exist_ok=True)
        odd.write_bytes(content)

    def load(entry):
        read_model(entry.path)
        return SimpleNamespace(version=entry.version)

    repository = Repository({}, tmp_path, load)
    assert repository.load_all().keys() == {"gr?n", "blau?"}
    message = json_format.ParseDict({"models": repository.index()}, grpc_schema.message("RepositoryIndexResponse")())
    assert [model.state for model in message.models] == ["UNAVAILABLE", "UNAVAILABLE", "READY"]
    assert "is no text in UTF-8" in message.models[0].reason
    with pytest.raises(RefusedError, match="is no text in UTF-8") as refused:
        repository.load("gr?n")
    refused.value.reason.encode()


def test_that_models_may_not_be_brought_is_no_fault_of_a_model():
    """The command ends with the exit code of a token that does not allow this."""

    def load(_):
        raise AccessError("reader 'eve' may not say OfferModel")

    with pytest.raises(AccessError, match="model 'rows': reader 'eve' may not"):
        Repository({"rows": Path("rows.onnx")}, None, load).load_all()


def test_a_folder_that_is_gone_is_named(tmp_path):
    repository = Repository({}, tmp_path / "models", lambda entry: read_model(entry.path))
    for ask in (repository.index, repository.load_all, lambda: repository.load("rows"), lambda: repository.unload("rows")):
        with pytest.raises(ModelError, match=r"folder of models '.*models' cannot be read: No such file or directory"):
            ask()


def test_a_model_that_is_being_loaded_is_not_called_one_that_is_not_there():
    """Clients of a server that was just started were told 404, and do not try again then."""
    said = []

    def load(entry):
        for name in ("a", "b", "c"):
            try:
                said.append((entry.name, name, repository.get(name)))
            except RefusedError as error:
                said.append((entry.name, name, error.kind))
        return SimpleNamespace(name=entry.name, version="1")

    repository = Repository({"a": Path("a.onnx"), "b": Path("b.onnx")}, None, load)
    repository.load_all()
    coming, unknown = Refusal.UNAVAILABLE, Refusal.UNKNOWN
    first = repository.get("a")
    assert said == [("a", "a", coming), ("a", "b", coming), ("a", "c", unknown), ("b", "a", first), ("b", "b", coming), ("b", "c", unknown)]
    repository.unload("b")
    with pytest.raises(RefusedError, match="it is not loaded: unloaded"):
        repository.get("b")


@pytest.mark.parametrize("other", ["03", "\u0664", "v5", "nine"])
def test_what_is_no_version_hides_none(tmp_path, other):
    for version in ("1", "2", other):
        write_rows(tmp_path / "rows" / version / "model.onnx")
    (entry,) = Repository({}, tmp_path, lambda entry: read_model(entry.path)).entries().values()
    assert (entry.name, entry.version) == ("rows", "2")


def listing(http, **said):
    return {line["name"]: line for line in http.json("POST", "/v2/repository/index", said)[1]}


def test_the_listing_says_what_is_served_and_why_not(http):
    found = listing(http)
    assert {"rows", "slow", "types", "triton", "sequence", "broken"} <= found.keys()
    assert "notes" not in found
    assert found["triton"]["version"] == "12"
    assert "the protocol has no such type" in found["sequence"]["reason"]
    assert found["broken"]["state"] == "UNAVAILABLE"
    assert listing(http, ready=True).keys() == {"bfloat16", "lstm", "rows", "slow", "triton", "types"}


def test_what_cannot_be_loaded_again_is_served_as_it_was(cluster, tmp_path):
    write_rows(tmp_path / "rows.onnx")
    with serving(cluster.address, tmp_path, tmp_path / "log") as server, server.http() as http:
        assert http.run("rows", X)["y"].shape == (2, 4)  # brings it
        (tmp_path / "rows.onnx").write_bytes(b"broken")
        status, said = http.json("POST", "/v2/repository/models/rows/load", {})
        assert (status, "it is served as it was" in said["error"]) == (400, True)
        assert http.run("rows", X)["y"].shape == (2, 4)
        assert listing(http)["rows"]["state"] == "READY"
        write_rows(tmp_path / "rows.onnx")
        assert http.json("POST", "/v2/repository/models/rows/load", {})[0] == 200


def test_models_come_and_go(cluster, tmp_path):
    folder = tmp_path / "models"
    write_rows(folder / "first.onnx")
    with serving(cluster.address, folder, tmp_path / "log", "--grpc", "127.0.0.1:0") as server, server.http() as http:
        write_slow(folder / "second" / "4" / "model.onnx")
        assert listing(http)["second"] == {"name": "second", "version": "4", "state": "UNAVAILABLE", "reason": "not loaded"}
        assert http.ask("POST", "/v2/models/second/infer", b"{}")[0] == 404
        assert http.json("POST", "/v2/repository/models/second/load", {})[0] == 200
        assert http.json("GET", "/v2/models/second/versions/4/ready")[0] == 200
        assert http.json("POST", "/v2/repository/models/first/unload") == (200, {})
        assert http.ask("POST", "/v2/models/first/infer", b"{}")[0] == 404
        rpc = Grpc(server.grpc)
        assert not rpc.ask("ModelReady", name="first").ready
        rpc.ask("RepositoryModelLoad", model_name="first")
        assert http.run("first", X)["y"].shape == (2, 4)
        rpc.ask("RepositoryModelUnload", model_name="first")
        assert listing(http)["first"]["reason"] == "unloaded"
        rpc.channel.close()
        (folder / "first.onnx").write_bytes(b"broken")
        status, said = http.json("POST", "/v2/repository/models/first/load")
        assert (status, listing(http)["first"]["reason"] in said["error"]) == (400, True)


@pytest.mark.parametrize("name", ["nix", "..%2Frows", "%2Fetc%2Fpasswd", "rows.onnx", "notes", "triton%2F3"])
def test_what_is_not_in_the_listing_is_not_looked_for(http, name):
    for what in ("load", "unload"):
        status, said = http.json("POST", f"/v2/repository/models/{name}/{what}")
        assert (status, "error" in said) == (404, True)


def test_clients_bring_no_files_and_no_configuration(http):
    said = {"parameters": {"config": "{}", "file:1/model.onnx": "AAAA"}}
    assert http.json("POST", "/v2/repository/models/rows/load", said)[0] == 400


def test_why_models_are_not_loaded_is_known_of_the_latest_ones(tmp_path, monkeypatch):
    monkeypatch.setitem(Repository.load.__globals__, "MAX_REASONS", 4)
    repository = Repository({}, tmp_path, lambda entry: read_model(entry.path))
    for number in range(9):
        path = tmp_path / f"version-{number}.onnx"
        write_rows(path)
        repository.load(path.stem)
        path.unlink()
        repository.unload(path.stem)
    assert (repository.models, list(repository._reasons)) == ({}, [f"version-{number}" for number in range(5, 9)])

"""The exported folder is executed by a reader that knows only what index.json says, numpy and onnxruntime."""

import json
from collections import deque

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from bbgrap import zoo

DTYPES = {"float": np.float32, "int64": np.int64}


def cut(array, box):
    return array if box is None else array[np.ix_(*(np.concatenate([np.arange(*r) for r in ranges]) for ranges in box))]


def execute(folder, feeds):
    """Run every node until it waits for a message that was not sent yet, in turns."""
    index = json.loads((folder / "index.json").read_text())
    homes = {node["name"]: folder / node["folder"] for node in index["nodes"]}
    documents = {name: json.loads((home / "steps.json").read_text()) for name, home in homes.items()}
    buffers = {name: dict(zip(document["feeds"], feeds, strict=False)) for name, document in documents.items()}
    todo = {name: deque(document["steps"]) for name, document in documents.items()}
    messages = {}

    def advance(name):
        held, moved = buffers[name], False
        while todo[name]:
            step = todo[name][0]
            if step["do"] == "receive" and (step["message"], name) not in messages:
                return moved
            if step["do"] == "receive":
                held.update(zip(step["buffers"], messages.pop((step["message"], name)), strict=True))
            elif step["do"] == "send":
                messages[step["message"], step["to"]] = [cut(held[p["buffer"]], p["box"]) for p in step["parts"]]
            elif step["do"] == "run":
                session = ort.InferenceSession(homes[name] / step["file"])
                inputs = [item.name for item in session.get_inputs()]
                answers = session.run(None, dict(zip(inputs, (held[n] for n in step["inputs"]), strict=True)))
                held.update(zip(step["outputs"], answers, strict=True))
            else:
                held[step["output"]] = joined(documents[name]["buffers"][step["output"]], held, step["pieces"])
            todo[name].popleft()
            moved = True
        return moved

    while any(todo.values()):
        moved = [advance(name) for name in todo]
        assert any(moved), "every node waits"
    return [buffers["coordinator"][n] for n in documents["coordinator"]["results"]]


def joined(spec, held, pieces):
    target = np.empty(spec["shape"], DTYPES[spec["dtype"]])
    for piece in pieces:
        part = cut(held[piece["buffer"]], piece["box"])
        if piece["to"] is None:
            target[...] = part
        else:
            target[np.ix_(*(np.concatenate([np.arange(*r) for r in ranges]) for ranges in piece["to"]))] = part
    return target


@pytest.mark.parametrize("options", [("--agents", "3"), ("--agents", "4", "--grid", "2x2"), ("--shares", "3,1", "--split", "channels")])
def test_what_is_exported_runs_without_bbgrap(run_json, tmp_path, options):
    folder = tmp_path / "parts"
    index = run_json("export", "zoo:tiny", *options, "--output", folder)
    assert index == json.loads((folder / "index.json").read_text())
    assert index["inputs"] == {"input": [1, 3, 32, 32]}
    models = sorted(folder.glob("*/*.onnx"))
    assert len(models) == sum(node["models"] for node in index["nodes"]) > 0
    for model in models:
        onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    (expected,) = ort.InferenceSession(zoo.materialize("tiny")).run(None, {"input": x})
    (answer,) = execute(folder, [x])
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)
    assert json.loads((folder / "plan.json").read_text())["model"] == "zoo:tiny"


def test_table(run, tmp_path):
    result = run("export", "zoo:tiny", "--agents", 2, "--output", tmp_path / "parts")
    assert result.exit_code == 0
    assert "index.json explains the rest" in result.stdout


@pytest.mark.broad
def test_folders_of_nodes_with_names_that_are_no_file_names(run_json, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes: [{name: a/b}, {name: A_b}, {name: '..'}]")
    index = run_json("export", "zoo:tiny", "--cluster", file, "--output", tmp_path / "parts")
    assert [node["name"] for node in index["nodes"]] == ["a/b", "A_b", "..", "coordinator"]
    assert [node["folder"] for node in index["nodes"]] == ["0-a_b", "1-A_b", "2-", "coordinator"]


@pytest.mark.parametrize(
    "names",
    [["index.json", "Plan.json"], *(pytest.param(["n" * 300, other], marks=pytest.mark.broad) for other in ("b", "n" * 301))],
)
def test_names_of_nodes_that_folders_cannot_have(run_json, tmp_path, names):
    file, parts = tmp_path / "cluster.yaml", tmp_path / "parts"
    file.write_text(f"nodes: [{{name: {names[0]}}}, {{name: {names[1]}}}]")
    index = run_json("export", "zoo:tiny", "--cluster", file, "--output", parts)
    assert [node["name"] for node in index["nodes"]] == [*names, "coordinator"]
    folders = {node["folder"] for node in index["nodes"]}
    assert {path.name for path in parts.iterdir()} == {"index.json", "plan.json", *folders}
    assert len(folders) == 3


@pytest.mark.parametrize("there", ["file", "full"])
def test_nothing_is_overwritten(run, tmp_path, there):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("precious")
    result = run("export", "zoo:tiny", "--agents", 2, "--output", tmp_path / there)
    assert result.exit_code == 2
    assert "expected a new or an empty folder" in result.stderr

"""Every command that needs no cluster takes every form of input; test_cluster_commands.py has the others."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tests.bbgrap.cli.given_inputs import FORMS, WRONG, write_files
from tests.bbgrap.cli.models import convolution
from tests.onnx_models import write_model


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)


COMMANDS = {
    "inspect": (),
    "plan": ("--agents", "2", "--planner", "bbgrap"),
    "simulate": ("--agents", "2", "--planner", "bbgrap"),
    "export": ("--agents", "2", "--planner", "bbgrap", "--output", "parts"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", COMMANDS)
def test_forms(run_json, image_model, command, form):
    options, shape = FORMS[form]
    found = run_json(command, image_model, *COMMANDS[command], *options)["inputs"]["x"]
    assert found == (f"float{list(shape)}" if command == "inspect" else list(shape))


@pytest.mark.parametrize("wrong", WRONG)
def test_what_contradicts_itself_is_an_error(run, image_model, wrong):
    options, said = WRONG[wrong]
    for command, more in COMMANDS.items():
        result = run(command, image_model, *more, *options)
        assert result.exit_code in (1, 2)
        assert said in result.stderr.splitlines()[-1]


def test_what_was_done_to_a_picture_is_said_but_not_in_the_json(run, image_model):
    result = run("simulate", image_model, "--agents", "2", "--input", "red.png", "--json")
    assert (
        "red.png: 10 x 8 pixels, RGB, values 0 to 1, less 0.485,0.456,0.406, over 0.229,0.224,0.225 (default: --normalize" in result.stderr
    )
    assert result.stdout.startswith("{")
    assert "random" not in result.stderr
    assert "inputs: random, seed 0" in run("simulate", image_model, "--agents", "2").stderr


def test_bytes_in_the_order_of_a_picture_and_of_any_size(run_json, tmp_path):
    """[1, H, W, 3] of bytes, as detectors take them that are exported from TensorFlow."""
    convolved, weight = convolution()
    nodes = [helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT), helper.make_node("Transpose", ["f"], ["x"], perm=[0, 3, 1, 2])]
    inputs, outputs, kinds = {"p": [1, "H", "W", 3]}, {"y": [1, 4, "H", "W"]}, {"p": TensorProto.UINT8}
    model = write_model(tmp_path / "bytes.onnx", [*nodes, convolved], inputs, outputs, weight, kinds=kinds)
    for options, shape in (((), [1, 16, 20, 3]), (("--size", "12x10"), [1, 10, 12, 3])):
        report = run_json("simulate", model, "--agents", "2", "--planner", "bbgrap", "--input", "red.png", *options)
        assert report["inputs"] == {"p": shape}
        assert report["verified"]


def test_a_plan_counts_the_bytes_in_which_a_picture_travels(run_json, run, image_model, tmp_path):
    (tmp_path / "slow.yaml").write_text("nodes: [{name: a}, {name: b}]\nnetwork: {bandwidth: 100Mbit/s, round_trip: 1ms}\n")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 80, 3), np.uint8)).save("noise.png")
    convolved, weight = convolution()
    model = write_model(tmp_path / "free.onnx", [convolved], {"x": [1, 3, "H", "W"]}, {"y": [1, 4, "H", "W"]}, weight)
    sent = {
        text: run_json("simulate", model, "--cluster", "slow.yaml", "--planner", "bbgrap", "--input", text)["optimized"]["scatter_bytes"]
        for text in ("noise.png", "1x3x64x80")
    }
    assert sent["noise.png"] < 0.5 * sent["1x3x64x80"]

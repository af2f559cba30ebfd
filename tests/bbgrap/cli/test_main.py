import json
import os
import platform
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from bbgrap.cli import main as command
from bbgrap.errors import BbgrapError, ClusterUnavailableError, ModelError, UsageError
from bbgrap.own_code import full_version
from tests.onnx_models import model_of, write_model
from tests.value_models import chances_by_label

COMMANDS = ("demo", "local", "nodes", "submit", "bench", "plan", "export", "simulate", "zoo", "profile")


def last_line(result):
    return result.stderr.strip().splitlines()[-1]


def test_help_names_every_command(run):
    result = run("--help")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(run, name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"bbgrap {name}" in result.stdout


def test_help_imports_nothing_heavy():
    heavy = ("numpy", "onnx", "onnxruntime", "zmq", "yaml", "psutil", "msgpack", "cryptography", "zeroconf")
    for program in ("bbgrap.cli", "bbgrap_agent", "bbgrap_coordinator"):
        code = f"""if True:
            import sys, {program}.main
            sys.argv = ["x", "--help"]
            try:
                {program}.main.run()
            except SystemExit:
                print(len(sys.modules), [m for m in {heavy!r} if m in sys.modules], file=sys.stderr)
        """
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        count, _, found = done.stderr.strip().partition(" ")
        assert "Usage" in done.stdout
        assert found == "[]"
        assert int(count) < 400, "Python itself, Typer and Rich are 330"


@pytest.mark.parametrize("program", ["bbgrap", "bbgrap-agent", "bbgrap-coordinator"])
def test_every_program_says_its_version(program):
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{program} {full_version()} (onnxruntime {onnxruntime.__version__}, Python {platform.python_version()})\n"


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("nonsense",),
        ("plan",),
        ("plan", "zoo:tiny"),
        ("plan", "zoo:tiny", "--agents", "0"),
        ("plan", "zoo:tiny", "--agents", "2", "--cluster", "c.yaml"),
        ("plan", "zoo:tiny", "--agents", "2", "--planner", "nobody"),
        ("plan", "zoo:tiny", "--agents", "2", "--split", "diagonal"),
        ("plan", "zoo:tiny", "--agents", "2", "--shares", "1,0"),
        ("plan", "zoo:tiny", "--agents", "2", "--shares", "1,2,3"),
        ("plan", "zoo:tiny", "--agents", "4", "--grid", "3x2"),
        ("plan", "zoo:tiny", "--agents", "4", "--grid", "two"),
        ("plan", "zoo:tiny", "--agents", "4", "--grid", "2x2", "--split", "batch"),
        ("plan", "zoo:tiny", "--agents", "2", "--input", "input=axb"),
        ("bench", "zoo:tiny"),
        ("bench", "zoo:tiny", "--agents", "1", "--planner", "bbgrap,nobody"),
        ("nodes",),
        ("nodes", "--coordinator", "tcp://head:seven"),
        ("submit", "zoo:tiny"),
        ("export", "zoo:tiny", "--agents", "2"),
        ("token", "create", "guest", "--lasts", "0s", "--coordinator", "tcp://127.0.0.1:9"),
    ],
)
def test_wrong_usage(run, args):
    result = run(*args)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_coordinator_not_there(run):
    result = run("submit", "zoo:tiny", "--coordinator", "tcp://127.0.0.1:9")
    assert result.exit_code == 3
    assert "no coordinator answers at tcp://127.0.0.1:9" in last_line(result)
    assert "bbgrap-coordinator --bind" in last_line(result)


def bad_models(folder):
    ends = {"x": [1, 4]}, {"y": [1, 4]}
    (folder / "text.onnx").write_text("This is not a model.")
    (folder / "empty.onnx").write_bytes(b"")
    write_model(folder / "rejected.onnx", [helper.make_node("Relu", ["nowhere"], ["y"])], *ends)
    weight = np.zeros((1, 1000), np.float32)
    outside = model_of([helper.make_node("Relu", ["w"], ["y"])], {"x": [1, 4]}, {"y": [1, 1000]}, {"w": weight})
    onnx.save(outside, folder / "outside.onnx", save_as_external_data=True, location="outside.data", size_threshold=0)
    (folder / "outside.data").unlink()
    magic = helper.make_node("Magic", ["x"], ["y"], domain="my.own")
    write_model(folder / "custom.onnx", [magic], *ends, domains={"my.own": 1})


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("nothing.onnx", "cannot be read: No such file"),
        ("text.onnx", "not an ONNX file"),
        ("empty.onnx", "not an ONNX file"),
        ("rejected.onnx", "the ONNX checker rejects it"),
        ("outside.onnx", "is missing; it must lie beside the model"),
        ("custom.onnx", "cannot load the model"),
    ],
)
def test_models_that_cannot_be_used(run, tmp_path, file, said):
    bad_models(tmp_path)
    result = run("plan", tmp_path / file, "--agents", 2)
    assert result.exit_code == 1
    assert last_line(result).startswith("bbgrap: ")
    assert said in last_line(result)


def test_no_such_network_in_the_zoo(run):
    result = run("plan", "zoo:lenet", "--agents", 2)
    assert result.exit_code == 1
    assert "there is no model 'lenet'; there are alexnet" in last_line(result)


def test_a_file_that_cannot_be_written(run, tmp_path):
    result = run("plan", "zoo:tiny", "--agents", 2, "--output", tmp_path / "no" / "plan.json")
    assert result.exit_code == 1
    assert "No such file or directory" in last_line(result)
    assert "planning" not in result.stderr, "it is said before the search"
    (tmp_path / "there.json").write_text("precious")
    for name in ("new.json", "there.json"):
        assert run("plan", "nothing.onnx", "--agents", 2, "--output", tmp_path / name).exit_code == 1
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("place", [0, 1, 4])
def test_debug_shows_the_traceback_wherever_it_stands(run, place):
    args = ["plan", "nothing.onnx", "--agents", "2"]
    args.insert(place, "--debug")
    result = run(*args)
    assert isinstance(result.exception, ModelError)


def test_the_installed_command_reports_in_one_line(tmp_path):
    done = subprocess.run(["bbgrap", "plan", "nothing.onnx", "--agents", "2", "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "bbgrap: model 'nothing.onnx': cannot be read: No such file or directory"


@pytest.mark.parametrize("as_json", [False, True])
def test_an_encoding_that_lacks_letters_of_a_name(tmp_path, as_json):
    (tmp_path / "c.yaml").write_text("nodes: [{name: größte}, {name: b}]", encoding="utf-8")
    command = ["bbgrap", "plan", "zoo:tiny", "--cluster", "c.yaml", "--planner", "single", "--explain", *["--json"][: int(as_json)]]
    surroundings = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=surroundings)
    assert (done.returncode, "fault" in done.stderr) == (0, False)
    if as_json:
        assert json.loads(done.stdout)["agents"] == ["größte", "b"]
    else:
        assert "over 2 nodes: gr\\xf6\\xdfte, b" in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("simulate", "zoo:tiny", "--agents", 2, "--seed", -1), "'--seed': Input should be greater than or equal to 0"),
        (("plan", "zoo:tiny", "--agents", 100_000_000), "'--agents': Input should be less than or equal to 256"),
        (("plan", "zoo:tiny", "--shares", "1e308,1e308"), "--shares: expected numbers from 1e-12 to 1e+18"),
    ],
)
def test_figures_that_are_out_of_bounds(run, args, said):
    result = run(*args)
    assert (result.exit_code, said in " ".join(result.stderr.replace("│", " ").split())) == (2, True), result.stderr


def test_a_reader_that_goes_away_is_no_error():
    pipe = "bbgrap plan zoo:tiny --agents 2 --explain --search-seconds 1 2>/dev/null | head -1; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True)
    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_what_is_printed_to_a_closed_stream_goes_nowhere(run):
    closed = "bbgrap plan zoo:tiny --agents 2 --planner bbgrap >&- <&-"
    done = subprocess.run(["bash", "-c", closed], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "fault" in done.stderr) == (0, False), done.stderr
    assert run("top", "--once", "--every", "inf").exit_code == 2


@pytest.mark.parametrize(
    ("error", "exit_code", "said"),
    [
        (BbgrapError("it failed"), 1, "it failed"),
        (UsageError("not so"), 2, "not so"),
        (ClusterUnavailableError("nobody"), 3, "nobody"),
        (FileNotFoundError(2, "No such file", "a.txt"), 1, "'a.txt': No such file"),
        (OSError(28, "No space left on device"), 1, "the output cannot be written: No space left on device"),
        (RuntimeError("can't start new thread"), 1, "refuses what it needs: can't start new thread; memory or processes may be limited"),
        (MemoryError(), 1, "refuses what it needs: no memory is left; it may be limited"),
        (KeyError("oops"), 1, "unexpected KeyError: 'oops'; this is a fault of bbgrap"),
    ],
)
def test_verdicts(error, exit_code, said):
    text, code = command._verdict(error)
    assert code == exit_code
    assert said in text


def test_models_of_lists_and_dictionaries_are_inspected_and_simulated(run, tmp_path):
    proto, _ = chances_by_label()
    onnx.save(proto, tmp_path / "chances.onnx")
    inspected = run("inspect", tmp_path / "chances.onnx")
    assert inspected.exit_code == 0
    assert "output  named: seq(map(string,tensor(float)))" in inspected.stdout
    simulated = run("simulate", tmp_path / "chances.onnx", "--agents", 2)
    assert simulated.exit_code == 0
    assert "verified against plain onnxruntime" in simulated.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")  # noqa: PTH110 - a device
@pytest.mark.parametrize("argument", ["zoo", "--version", "--help"])
def test_a_full_disk_behind_the_output_is_said_in_one_line(argument):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(["bbgrap", argument], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "bbgrap: the output cannot be written: No space left on device\n")


def test_nothing_is_said_of_a_reader_that_has_read_enough():
    reading, writing = os.pipe()
    os.close(reading)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["bbgrap", "zoo"], stdout=writing, stderr=subprocess.PIPE, text=True, env=buffered, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")

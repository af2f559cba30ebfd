"""`bbgrap exec` runs a program that knows nothing of bbgrap as Python itself would, but its sessions are on the cluster."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bbgrap.cli.main import app
from tests.surface import models

pytestmark = pytest.mark.cluster

PROGRAM = """
import json, multiprocessing, sys
from pathlib import Path
import numpy as np
import onnxruntime, onnxruntime.datasets
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as third
import beside

x = np.ones((2, 3), np.float32)

def serves():
    session = InferenceSession(sys.argv[1], providers=onnxruntime.get_available_providers())
    return [session.run(None, {"a": x, "b": x})[0].tolist(), session.get_providers()[0]]

def work(x: int = 0):
    from bbgrap.engine.sessions import make_session
    assert InferenceSession is onnxruntime.InferenceSession is third
    others = []
    for method in sys.argv[4:]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            others.append(pool.apply(serves))
    inside = type(make_session(Path(sys.argv[1]))).__module__
    print(json.dumps([__name__, sys.argv[1:], sys.path[0], beside.NAME, serves(), *others, inside, str(work.__annotations__["x"])]))
    sys.exit(7)

if __name__ == "__main__":
    work()
"""
FAILING = "import onnxruntime\n\ndef work():\n    raise KeyError('mine')\n\nwork()\n"
WAITING = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nprint('here', flush=True)\ntime.sleep(60)\n"


@pytest.fixture
def start(cluster, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "add.onnx").write_bytes(models.add())
    environment = {**os.environ, "BBGRAP_COORDINATOR": cluster.address}

    def run(*command):
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return run


@pytest.mark.parametrize(
    ("program", "others"), [(["program.py"], ["fork", "spawn", "forkserver"]), pytest.param(["-m", "program"], [], marks=pytest.mark.broad)]
)
def test_a_program_runs_unmodified(start, program, others, tmp_path):
    arguments = ["add.onnx", "--debug", "--agents", *others]
    process = start("bbgrap", "exec", *program, *arguments)
    said, errors = process.communicate(timeout=60)
    name, argv, path, beside, *served, inside, annotation = json.loads(said)
    assert (name, argv, path, beside) == ("__main__", arguments, str(tmp_path.resolve()), "beside")
    assert served == [[[[2, 2, 2]] * 2, "BBGrapExecutionProvider"]] * (1 + len(others))  # by itself, and by a process of each kind
    assert inside == "onnxruntime.capi.onnxruntime_inference_collection"
    assert annotation == "<class 'int'>"  # its own `__future__`, not that of what compiles it
    assert (process.returncode, errors) == (7, "")


@pytest.mark.broad
def test_its_traceback_is_its_own(start):
    ours, theirs = (start(*how, "failing.py") for how in (("bbgrap", "exec"), (sys.executable,)))
    told = [process.communicate(timeout=60)[1] for process in (ours, theirs)]
    assert ours.returncode == theirs.returncode == 1
    assert told[0] == told[1]
    assert "KeyError: 'mine'" in told[0]


@pytest.mark.broad
def test_who_ends_the_command_ends_the_program(start):
    process = start("bbgrap", "exec", "waiting.py")
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 5


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["exec", "nowhere.py"], "program 'nowhere.py': there is no such file; a module's name takes -m before it"),
        (["exec", __file__, "--coordinator", "x"], "which cluster? give --coordinator"),
    ],
)
def test_wrong_usage(command, told):
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, told in result.output) == (2, True)


def test_a_module_that_is_not_there_is_one_line_as_python_says_it():
    command = [sys.executable, "-m", "bbgrap.onnxruntime", "-m", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "bbgrap exec: No module named nowhere\n")

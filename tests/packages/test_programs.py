"""Programs made for onnxruntime, unmodified: run by `python` and by `bbgrap exec --agents 2`, they print the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
NOWHERE = "tcp://127.0.0.1:9"
"""Where no coordinator is."""

PROGRAMS = {
    "rapidocr_reads": (("rapidocr",), "INVOICE 2024-117"),
    "magika_names": (("magika",), "python"),
    "silero_hears": (("silero_vad", "torch"), "start"),
    "detector_finds": (("torch", "onnxscript"), "triangle"),
    "language_recites": (("torch", "onnxscript"), "The Owl looked up to the stars above,"),
}
"""The programs in `examples`: the packages that each of them needs, and what it prints if it works at all."""


@pytest.fixture(scope="session", params=sorted(PROGRAMS))
def program(request, tmp_path_factory):
    """The program with its arguments, and what it prints; some read a model that is trained and exported for them."""
    packages, printed = PROGRAMS[request.param]
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed; run 'make test-packages'")
    command = [str(HERE / "examples" / f"{request.param}.py")]
    trainer = HERE / "trained" / f"{request.param.partition('_')[0]}.py"
    if trainer.exists():
        model = tmp_path_factory.mktemp("trained") / "model.onnx"
        run(sys.executable, str(trainer), str(model))
        command.append(str(model))
    return command, printed


def test_program_prints_the_same_on_two_agents_as_on_onnxruntime(program) -> None:
    command, printed = program
    want = run(sys.executable, *command)
    assert printed in want
    assert_same(json.loads(run("bbgrap", "exec", "--agents", "2", *command)), json.loads(want), "answer")


def test_program_is_not_answered_by_onnxruntime_in_its_own_process(program) -> None:
    command, _ = program
    done = subprocess.run(
        [sys.executable, "-m", "bbgrap.onnxruntime", *command],
        env={**os.environ, "BBGRAP_COORDINATOR": NOWHERE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"no coordinator answers at {NOWHERE}" in done.stderr


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}"
    return done.stdout


def assert_same(got: Any, want: Any, where: str) -> None:
    """Names, numbers of things and places in pixels or samples equal; scores as near as onnxruntime is to itself on other processors."""
    assert type(got) is type(want), f"{where}: {got!r}, expected {want!r}"
    match want:
        case dict():
            assert list(got) == list(want), where
            for key in want:
                assert_same(got[key], want[key], f"{where}, {key}")
        case list():
            assert len(got) == len(want), f"{where}: {got!r}, expected {want!r}"
            for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
                assert_same(mine, theirs, f"{where}, {number}")
        case float():
            assert got == pytest.approx(want, abs=1e-3), where
        case _:
            assert got == want, where

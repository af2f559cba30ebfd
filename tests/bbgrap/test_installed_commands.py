"""What happens to a command that is interrupted before it has begun."""

import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import bbgrap

COMMANDS = ["bbgrap", "bbgrap_agent", "bbgrap_coordinator"]
INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "{at}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["a", "--version"]
from bbgrap.installed_commands import {command}
{command}()
"""


def interrupted(command, at="typer", handler="default_int_handler"):
    """Start a command that is interrupted when it imports something."""
    code = INTERRUPTED.format(command=command, at=at, handler=handler)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="no process can interrupt itself there")
@pytest.mark.parametrize("command", COMMANDS)
def test_an_interrupt_while_a_command_is_imported_ends_it_in_silence(command):
    done = interrupted(command)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such timer there")
def test_an_interrupt_while_onnxruntime_begins_is_no_fault():
    """Its compiled part makes an `ImportError` of it: of most interrupts in that second the command said that it was a fault of bbgrap."""
    code = """if True:
        import signal, sys

        class Interrupting:
            def find_spec(self, name, path, target=None):
                if name == "onnxruntime":
                    signal.setitimer(signal.ITIMER_REAL, 0.02)

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        import numpy
        sys.meta_path.insert(0, Interrupting())
        sys.argv = ["a", "plan", "zoo:vgg16"]
        from bbgrap.installed_commands import bbgrap
        bbgrap()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "fault" in done.stderr) == (130, False), done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_was_started_to_ignore_interrupts_does(command):
    done = interrupted(command, handler="SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "")
    assert bbgrap.__version__ in done.stdout


def test_an_interrupt_before_a_command_reports_errors_itself_ends_it_as_an_interrupt_does(monkeypatch):
    def interrupted_run():
        raise KeyboardInterrupt

    monkeypatch.setattr("bbgrap.cli.main.run", interrupted_run)
    with pytest.raises(SystemExit) as ended:
        import_module("bbgrap.installed_commands").bbgrap()
    assert ended.value.code == 128 + signal.SIGINT


def test_what_is_installed_can_be_run():
    scripts = tomllib.loads((Path(bbgrap.__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]
    assert {name.replace("-", "_") for name in scripts} == set(COMMANDS)
    for name, place in scripts.items():
        module, _, function = place.partition(":")
        assert function == name.replace("-", "_")
        assert callable(getattr(import_module(module), function))

import json
import logging
import os
import pty
import select
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bbgrap.observing.logs import LOG_FILE, MOST_LETTERS, JsonLines, TextLines
from bbgrap.session import connect
from tests.waiting import until

CODE = """
import logging
import os
from bbgrap.observing.logs import LogFormat, inherited_format, name_node, write_logs
write_logs(LogFormat({form!r}))
name_node("left")
assert inherited_format() is LogFormat({form!r})
logging.getLogger("bbgrap.x").warning("plan %d", 5, extra={{"model": "ab" * 32, "epoch": 7, "request": 0}})
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("bbgrap.x").exception("it failed\\nbadly")
"""


def lines(form: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", CODE.format(form=form)], capture_output=True, text=True, check=True).stderr.splitlines()


def test_json_lines_say_what_they_speak_of():
    plan, failure = map(json.loads, lines("json"))
    assert plan.pop("time").endswith("+00:00")
    assert plan == {"level": "warning", "logger": "bbgrap.x", "message": "plan 5", "model": "ab" * 32, "node": "left", "epoch": 7}
    assert failure["message"] == "it failed\nbadly"
    assert "ZeroDivisionError" in failure["exception"]


UNREAD = """
import logging
import sys
from bbgrap.observing.logs import LogFormat, write_logs
write_logs(LogFormat.TEXT)
log = logging.getLogger("bbgrap.x")
for number in range(2000):
    log.info("%d %s", number, "x" * number)
print("written", flush=True)
sys.stdin.readline()
log.info("again")
"""


@pytest.mark.parametrize("stopped", ["pipe", "terminal"])
def test_who_writes_lines_does_not_wait_for_who_reads_them(stopped):
    ours, theirs = os.pipe() if stopped == "pipe" else pty.openpty()
    if stopped == "terminal":
        termios.tcflow(theirs, termios.TCOOFF)
    process = subprocess.Popen([sys.executable, "-c", UNREAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs, text=True)
    assert process.stdout.readline() == "written\n"
    if stopped == "terminal":
        termios.tcflow(theirs, termios.TCOON)
    os.close(theirs)
    read: list[str] = []
    reading = threading.Thread(target=lambda: read.extend(lines_of(ours)))
    reading.start()
    until(lambda: (read or stopped == "terminal") and not select.select([ours], [], [], 0)[0])
    process.communicate("\n", timeout=60)
    reading.join(60)
    *before, told, last = read
    assert [line.split()[4] for line in before] == [str(number) for number in range(len(before))]
    assert f" {2000 - len(before)} lines of this log are lost: nobody read them" in told
    assert last.endswith("INFO bbgrap.x again\n")


NOWHERE = """
import logging
import os
from bbgrap.observing.logs import LogFormat, write_logs
write_logs(LogFormat.TEXT)
os.close(2)
logging.warning("x")
print("on")
"""


def test_who_has_nowhere_to_write_lines_goes_on():
    done = subprocess.run([sys.executable, "-c", NOWHERE], stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout == "on\n"


def lines_of(descriptor: int) -> Iterator[str]:
    with open(descriptor) as reader, suppress(OSError):
        yield from reader


def test_text_lines_have_a_level_the_model_and_the_epoch():
    first, second, *rest = lines("text")
    assert first.endswith("WARNING bbgrap.x plan 5 [model abababab, epoch 7]")
    assert second.endswith("ERROR bbgrap.x it failed")
    assert rest[-1].startswith("ZeroDivisionError")


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_records_of_other_libraries_are_lines_too(form):
    record = logging.LogRecord("zmq", logging.INFO, "x.py", 1, "model %s", ("abababab",), None)
    record.model = "ab" * 32
    record.epoch = 5
    record.msg += " of epoch 5"
    line = form.format(record)
    assert "model abababab of epoch 5" in line
    assert "[" not in line


@pytest.mark.broad
@pytest.mark.cluster
def test_processes_write_nothing_but_objects(tmp_path):
    """A coordinator, an agent and its worker, which end with this test."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    def start(module: str, *options: str) -> subprocess.Popen:
        command = [sys.executable, "-m", module, "--insecure", "--until-eof", "--log-format", "json", *options]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)

    ready = tmp_path / "ready"
    with start("bbgrap_coordinator.main", "--bind", "tcp://127.0.0.1:0", "--ready-file", str(ready)) as coordinator:
        until(ready.exists)
        with start("bbgrap_agent.main", "--join", ready.read_text(), "--name", "left", "--threads", "1") as agent:
            with connect(ready.read_text(), 30.0, insecure=True) as connection:
                until(connection.nodes)
            ends = [process.communicate(timeout=60)[1].decode() for process in (agent, coordinator)]
    theirs, ours = ([json.loads(line) for line in end.splitlines()] for end in ends)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in (*theirs, *ours))
    assert {line["node"] for line in theirs} == {"left"}
    (joined,) = [line for line in ours if line["message"] == "agent 'left' joined; agents: 1"]
    assert joined["node"] == "left"


def test_what_peers_wrote_makes_no_line_of_its_own_and_steers_no_terminal():
    said = "gone\n2026-11-28 INFO bbgrap.coordinator all is well\x1b[2J" + "x" * 100_000
    line = TextLines().format(logging.LogRecord("bbgrap.x", logging.INFO, "x.py", 1, "agent left: %s", (said,), None))
    assert "\x1b" not in line
    assert all(each.startswith("    ") for each in line.splitlines()[1:])
    assert len(line) < 2 * MOST_LETTERS


FILLS = """
import logging
import sys
from bbgrap.observing import logs
logs.MOST_FILE_BYTES = 10_000
logs.write_logs(logs.LogFormat.TEXT)
for number in range(1000):
    logging.getLogger("bbgrap.x").info("line %d of %s", number, sys.argv[1])
"""


def test_a_file_that_was_opened_for_processes_has_bounded_size(tmp_path):
    """A cluster that runs for months filled the disk of the machine that it was started on."""
    path = tmp_path / "agent.log"
    with path.open("ab") as log:
        # A nanny and its worker share one file.
        ran = [
            subprocess.Popen([sys.executable, "-c", FILLS, name], stderr=log, env={**os.environ, LOG_FILE: str(path)})
            for name in ("nanny", "worker")
        ]
        assert [process.wait() for process in ran] == [0, 0]
    assert {each.name for each in tmp_path.iterdir()} == {"agent.log", "agent.log.1"}
    assert all(each.stat().st_size < 11_000 for each in tmp_path.iterdir())
    assert any(path.read_text().splitlines()[-1].endswith(f"line 999 of {name}") for name in ("nanny", "worker"))

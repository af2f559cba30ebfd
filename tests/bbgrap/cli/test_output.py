import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest

from bbgrap.cli.output import print_json, print_result, print_sentences, print_table, report_error, say, step
from bbgrap.cli.submit import _summary


def test_steps_where_lines_cannot_be_rewritten(capsys):
    with step("reading") as progress:
        progress.update("too early to be worth a line")
    with step("planning"):
        say("a remark")
    assert [line.rpartition(" ... ")[0] for line in capsys.readouterr().err.splitlines()] == ["reading", "", "", "planning"]


def test_a_step_that_fails_ends_its_line(capsys):
    with pytest.raises(KeyError), step("reading"):
        raise KeyError
    report_error("it failed\nthe end\nof its log")
    assert capsys.readouterr().err.splitlines() == ["reading ...", "bbgrap: it failed", "    the end", "    of its log"]


def test_a_name_that_a_terminal_would_obey_is_only_shown(capsys):
    name, shown = "A\x1b[31mRED\x1b]0;pwn\x07\x9b1m", "A\ufffd[31mRED\ufffd]0;pwn\ufffd\ufffd1m"
    print_result(f"one\n\ttwo {name}")
    print_sentences(name)
    print_table((name, "b"), [(name, 1)], title=name)
    say(name)
    with step(name):
        report_error(name)
    said = capsys.readouterr()
    assert f"one\n\ttwo {shown}\n" in said.out
    for text, times in ((said.out, 5), (said.err, 4)):
        assert text.count(shown) == times
        assert not set("\x1b\x07\x9b") & set(text)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_sentences_break_between_words_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr", Terminal())
    report_error(
        "no coordinator answers at tcp://a-rather-long-name-of-a-host.example:7070 within 3 s\nthe end of its log, " + "word " * 10
    )
    lines = sys.stderr.getvalue().splitlines()
    assert all(len(line) <= 40 or " " not in line.strip() for line in lines), lines
    assert (
        " ".join(" ".join(lines).split())
        == (
            "bbgrap: no coordinator answers at tcp://a-rather-long-name-of-a-host.example:7070 within 3 s the end of its log, "
            + "word " * 10
        ).strip()
    )
    assert lines[-1].startswith("      word")


def everything_on(terminal):
    """Return what was written to a terminal whose other end is closed; one look may find a part of it."""
    found = b""
    with contextlib.suppress(OSError):  # its end
        while piece := os.read(terminal, 4096):
            found += piece
    os.close(terminal)
    return found


def test_one_line_a_step_on_a_terminal(cache):
    ours, theirs = pty.openpty()
    surroundings = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "XDG_CACHE_HOME": str(cache)}
    command = ["bbgrap", "plan", "zoo:tiny", "--planner", "bbgrap", "--agents", "2", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=surroundings, check=True)
    os.close(theirs)
    text = everything_on(ours).decode()
    assert json.loads(done.stdout)["planner"] == "bbgrap"
    remark, step, steps = text.partition("\r\x1b[2K")
    assert remark.startswith("without --cluster FILE")
    assert all(line.startswith("\r\x1b[2K") for line in (step + steps).removesuffix("\r\n").split("\r\n"))
    assert "\r\x1b[2Kplanning over 2 nodes ...\r\x1b[2Kplanning over 2 nodes ... 0." in text
    assert not re.search(r"\x1b\[[0-9;]*m", text), "colours"


def test_tables_are_plain_text_in_a_pipe(capsys):
    print_table(("name", "bytes"), [("a", 1_234_567), ("b [red]", 0.5)], title="Sizes")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["Sizes"], ["name", "bytes"], ["a", "1,234,567"], ["b", "[red]", "0.50"]]
    assert all("\x1b" not in line for line in lines)


def test_cells(capsys):
    print_table(("a", "b", "c", "d"), [(None, True, 1e-7, "x")])
    assert capsys.readouterr().out.split() == ["a", "b", "c", "d", "-", "yes", "1e-07", "x"]


def test_json_keeps_text_readable(capsys):
    print_json({"name": "süß"})
    text = capsys.readouterr().out
    assert json.loads(text) == {"name": "süß"}
    assert "süß" in text


def test_of_infinities_there_is_no_mean_and_no_warning(recwarn):
    _, mean, largest = _summary(np.array([np.inf, -np.inf], np.float32))
    assert (str(mean), largest) == ("nan", np.inf)
    assert not recwarn.list

import json
import logging
import subprocess
import sys

import pytest

from bbgrap.observing.logs import JsonLines, TextLines

CODE = """
import logging
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


def test_text_lines_have_a_level_and_the_model():
    first, second, *rest = lines("text")
    assert first.endswith("WARNING bbgrap.x plan 5 [model abababab]")
    assert second.endswith("ERROR bbgrap.x it failed")
    assert rest[-1].startswith("ZeroDivisionError")


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_records_of_other_libraries_are_lines_too(form):
    record = logging.LogRecord("zmq", logging.INFO, "x.py", 1, "model %s", ("abababab",), None)
    record.model = "ab" * 32
    line = form.format(record)
    assert "model abababab" in line
    assert "[model" not in line

import json
from pathlib import Path

import pytest

from bbgrap.cli.timelines import check_target, write_timeline
from bbgrap.costmodel.timeline import Span, Timeline
from bbgrap.errors import UsageError

TIMELINE = Timeline(("a",), (Span(0, "compute", "s", 0.0, 0.001, segment=0),))


def test_the_name_of_the_file_says_what_is_written(tmp_path):
    for name, begins in (("t.json", "{"), ("t.SVG", "<svg"), ("deep/er/t.html", "<!DOCTYPE html>")):
        write_timeline(tmp_path / name, TIMELINE, "title")
        assert (tmp_path / name).read_text().startswith(begins)
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) == 11
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "t.SVG", "t.json"]


def test_another_name_is_a_usage_error():
    with pytest.raises(UsageError, match=r"expected a name that ends in \.json or \.svg or \.html"):
        check_target(Path("t.png"))


def test_trace_checks_its_files_before_anything_else(run):
    for options in (("-o", "trace.txt"), ("--html", "report.json")):
        result = run("trace", "zoo:tiny", *options)
        assert result.exit_code == 2
        assert "expected a name that ends in" in result.stderr.splitlines()[-1]


def test_help_has_examples(run):
    result = run("trace", "--help")
    assert result.exit_code == 0
    assert "bbgrap trace zoo:resnet50 --agents 2 -o trace.json" in result.stdout


@pytest.mark.parametrize(
    ("command", "option", "target", "told"),
    [
        ("trace", "-o", "folder.json", "Is a directory"),
        ("trace", "-o", "file/t.json", "File exists"),
        ("simulate", "--timeline", "folder.json", "Is a directory"),
        ("submit", "--output", "file", "File exists"),
    ],
)
def test_a_file_that_cannot_be_written_is_said_before_anything_else(run, tmp_path, command, option, target, told):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    result = run(command, "nowhere.onnx", "--agents", 1, option, tmp_path / target)
    assert (result.exit_code, told in " ".join(result.stderr.split())) == (1, True)

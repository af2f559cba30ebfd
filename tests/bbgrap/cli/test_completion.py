import os
import subprocess
import sys

import pytest

from bbgrap.cli.completion import models, planners, rejoined

pytestmark = pytest.mark.cluster


def proposed(tmp_path, *words, shell="bash", **variables):
    """What bash is told about the last of these words, which it has cut at colons."""
    environment = {**os.environ, "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_BBGRAP_COMPLETE": f"complete_{shell}"}
    code = "from bbgrap.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **variables}, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "place", "whole"),
    [
        (["bbgrap", "plan", "zoo", ":", "ti"], 4, (["bbgrap", "plan", "zoo:ti"], 2)),
        (["bbgrap", "plan", "zoo", ":"], 3, (["bbgrap", "plan", "zoo:"], 2)),
        (["a", "tcp", ":", "//h", ":", "7070", ""], 6, (["a", "tcp://h:7070", ""], 2)),
        (["a", "--planner", "=", "si"], 3, (["a", "--planner=si"], 1)),
        (["a"], 1, (["a"], 1)),
    ],
)
def test_words_are_as_they_were_typed(words, place, whole):
    assert rejoined(words, place) == whole


def test_bash_is_told_what_comes_behind_its_colon(tmp_path):
    assert proposed(tmp_path, "bbgrap", "plan", "zoo", ":", "alex") == ["alexnet"]


def test_models_are_of_the_zoo_and_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "zoology.onnx").touch()
    (tmp_path / "zoo.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert {"zoo:tiny", "zoo:vgg16", "zoology.onnx"} <= set(models("zo"))
    assert "zoo.txt" not in models("zo")
    assert models("zoo:alex") == ["zoo:alexnet"]
    assert models("./zoo") == ["./zoology.onnx"]


def test_planners_behind_a_comma_are_others():
    assert planners("sin") == ["single"]
    assert "single,soybean" in planners("single,s")
    assert "single,single" not in planners("single,s")


def test_nothing_is_proposed_where_nobody_answers(tmp_path):
    assert proposed(tmp_path, "bbgrap", "profile", "--node", "ag", BBGRAP_COORDINATOR="tcp://127.0.0.1:9") == []

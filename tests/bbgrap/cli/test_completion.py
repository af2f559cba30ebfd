import os
import subprocess
import sys

import pytest

from bbgrap.cli.completion import planners, rejoined

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


def test_models_are_of_the_zoo_and_of_the_folder(tmp_path):
    (tmp_path / "zoology.onnx").touch()
    (tmp_path / "zoo.txt").touch()
    assert {"zoo:tiny", "zoo:vgg16", "zoology.onnx"} <= set(proposed(tmp_path, "bbgrap", "plan", "zo"))
    assert "zoo.txt" not in proposed(tmp_path, "bbgrap", "plan", "zo")
    assert proposed(tmp_path, "bbgrap", "plan", "zoo", ":", "alex") == ["alexnet"]


def test_planners_behind_a_comma_are_others():
    assert planners("sin") == ["single"]
    assert "single,soybean" in planners("single,s")
    assert "single,single" not in planners("single,s")


def test_nodes_are_asked_for_where_the_command_would_ask(tmp_path, tmp_path_factory):
    from tests.known_agents import known_cluster

    with known_cluster(1, tmp_path_factory.mktemp("weights"), pin=False) as cluster:
        assert proposed(tmp_path, "bbgrap", "profile", "--node", "ag", BBGRAP_COORDINATOR=cluster.address) == ["agent0"]
        settings = tmp_path / "own.toml"
        settings.write_text(f"[bbgrap]\ncoordinator = '{cluster.address}'\n")
        assert proposed(tmp_path, "bbgrap", "token", "revoke", "", BBGRAP_CONFIG=str(settings)) == ["agent0", "join", "local"]
        settings.write_text("[bbgrap")
        assert proposed(tmp_path, "bbgrap", "profile", "--node", "ag", BBGRAP_CONFIG=str(settings)) == []


def test_nothing_is_proposed_where_nobody_answers(tmp_path):
    assert proposed(tmp_path, "bbgrap", "profile", "--node", "ag", BBGRAP_COORDINATOR="tcp://127.0.0.1:9") == []

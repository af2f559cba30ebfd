"""Names of agents that were given none."""

import subprocess
import sys
from contextlib import closing

import pytest
from bbgrap_agent.own_name import OwnName

from bbgrap.errors import BbgrapError


def test_each_agent_has_its_own_and_a_name_is_free_again(tmp_path):
    first = OwnName(tmp_path, "host")
    with closing(OwnName(tmp_path, "host")) as second:
        assert (first.name, second.name) == ("host", "host-2")
        first.close()
        with closing(OwnName(tmp_path, "host")) as third:
            assert third.name == "host"


def test_the_lock_goes_with_its_process_however_it_ends(tmp_path):
    script = f"import os, pathlib; from bbgrap_agent.own_name import OwnName; OwnName(pathlib.Path({str(tmp_path)!r}), 'host'); os.abort()"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode < 0
    with closing(OwnName(tmp_path, "host")) as name:
        assert name.name == "host"


def test_a_name_never_leaves_its_folder(tmp_path):
    with closing(OwnName(tmp_path / "names", "../../host")) as name:
        assert name.name == "..-..-host"
    assert [path.parent.name for path in tmp_path.rglob("*.lock")] == ["names"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BbgrapError, match="choose a name with --name") as raised:
        OwnName(tmp_path / "file" / "names", "host")
    assert raised.value.exit_code == 1  # units start it again

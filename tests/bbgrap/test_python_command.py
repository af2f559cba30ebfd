"""Files of a user's folder are not taken for modules of libraries by what commands start."""

import subprocess
import sys

import pytest

GONE = "import os, sys; from bbgrap.python_command import python_command; os.rmdir(os.getcwd()); print(python_command()[1:])"
START = """
import subprocess
from bbgrap.python_command import python_command
print(subprocess.call([*python_command(), "-m", "json.tool", "-h"]))
"""


@pytest.mark.parametrize(("options", "status"), [(["-P"], "0"), ([], "1")])
def test_what_is_started_looks_where_its_starter_does(tmp_path, options, status):
    (tmp_path / "json.py").write_text("raise SystemExit(1)\n")
    done = subprocess.run([sys.executable, *options, "-c", START], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == status


def test_a_folder_that_is_gone_keeps_nobody_from_starting(tmp_path):
    """An agent starts workers as long as it lives."""
    done = subprocess.run([sys.executable, "-P", "-c", GONE], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['-P']\n"

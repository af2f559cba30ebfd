"""Code that is replaced while it runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import bbgrap.own_code

LOOK = """
from pathlib import Path
from bbgrap.own_code import code_on_disk, own_code, replaced_code
file, began = Path({file!r}), own_code()
print(replaced_code())
file.write_bytes(b"A = 1\\r\\n")
print(replaced_code())
file.write_bytes(b"A = 2\\n")
print(own_code() == began != code_on_disk(), replaced_code())
file.rename(file.with_name("other.py"))
print(replaced_code())
"""


def test_a_process_knows_that_other_code_lies_on_the_disk_than_it_runs(tmp_path):
    package, ours = tmp_path / "bbgrap", Path(bbgrap.own_code.__file__).parent
    (package / "protocol").mkdir(parents=True)
    for name in ("own_code.py", "protocol/version.py"):
        shutil.copy(ours / name, package / name)
    for name in ("__init__.py", "protocol/__init__.py", "a.py"):
        (package / name).write_bytes(b"A = 1\n")
    script = LOOK.format(file=str(package / "a.py"))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    said = "another version of bbgrap was installed while this process ran; start it again"
    assert done.stdout.splitlines() == ["", "", f"True {said}", said]

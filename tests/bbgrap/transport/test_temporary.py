"""Temporary folders end with their owners."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bbgrap.errors import UsageError
from bbgrap.session import InferenceSession
from bbgrap.transport.temporary import folder_of
from tests.waiting import until

if sys.platform != "win32":
    import fcntl


class Owner:
    """Something that has a folder."""


def test_a_folder_ends_with_its_owner():
    owner = Owner()
    folder = folder_of(owner, "bbgrap-test-")
    (folder / "file").write_bytes(b"content")
    del owner
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="systems tidy up in other ways")
def test_a_folder_is_locked_for_who_tidies_up_as_long_as_it_is_there():
    """After ten days of quiet a cluster of a program's own had lost its token and its models."""
    owner = Owner()
    folder = folder_of(owner, "bbgrap-test-")
    descriptor = os.open(folder, os.O_RDONLY)  # as systemd's tmpfiles look
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    del owner
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="systemd is not here")
def test_tmpfiles_of_systemd_leave_a_folder_that_is_in_use_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp" / "old").mkdir(parents=True)
    owner = Owner()
    (folder := folder_of(owner, "bbgrap-test-")).joinpath("file").touch()
    (tmp_path / "rules").write_text(f"d {tmp_path / 'tmp'} 0755 - - 1us\n")
    until(
        lambda: subprocess.run(["systemd-tmpfiles", "--clean", tmp_path / "rules"], check=True) and not (tmp_path / "tmp" / "old").exists()
    )
    assert (folder / "file").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes fork on Unix")
def test_a_fork_child_leaves_it_alone(monkeypatch):
    owner = Owner()
    folder = folder_of(owner, "bbgrap-test-")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        del owner
        assert folder.exists()
    folder.rmdir()


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
def test_what_a_killed_process_has_left_goes_with_the_next_folder(tmp_path, monkeypatch):
    """Each killed client left its model in the folder for temporary files, for ever."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os; from bbgrap.transport.temporary import folder_of; folder_of(os, 'bbgrap-test-'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    (left,) = tmp_path.iterdir()
    lives, new = Owner(), Owner()
    used = folder_of(lives, "bbgrap-test-")
    assert left.exists(), "it may just be about to be locked"
    for folder in (left, used):
        os.utime(folder, (0, 0))
    made = folder_of(new, "bbgrap-test-")
    assert set(tmp_path.iterdir()) == {used, made}


def test_without_a_place_for_temporary_files_it_is_said_what_to_set(monkeypatch):
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/dev/null"])  # as Python finds it in a read-only container
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(UsageError, match="set TMPDIR to a folder that can be written"):
        folder_of(Owner(), "bbgrap-test-")


def test_a_model_that_has_no_room_is_told_with_where_and_what_to_do(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UsageError, match=r"model: its 7 bytes do not fit into '/.*': No space left on device; set TMPDIR to a folder"):
        InferenceSession(b"a model")

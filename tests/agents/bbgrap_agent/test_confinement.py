"""Folders for temporary files: each worker keeps its own, and those of workers that were killed go."""

import fcntl
import os
import shutil
import tempfile

import pytest
from bbgrap_agent import confinement


@pytest.fixture
def scratch(tmp_path):
    """Make the folder of one more worker of this cache."""
    return lambda: confinement._scratch(tmp_path)


def is_free(folder):
    """Whether nobody has locked it."""
    other = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(other)
    return True


def test_workers_of_a_cache_keep_their_folders(scratch):
    folders = [scratch() for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.is_dir() and not is_free(folder) for folder in folders)


def test_what_nobody_has_locked_is_removed(scratch, tmp_path):
    left = tmp_path / "scratch-left"
    (left / "model").mkdir(parents=True)
    assert scratch() != left
    assert not left.exists()


@pytest.mark.parametrize("removed", [True, False])
def test_one_that_another_worker_found_before_it_was_locked_is_not_used(scratch, monkeypatch, removed):
    """Between the two calls that make and lock it, the other one locks it, and removes it then or a moment later."""
    make, found = tempfile.mkdtemp, []

    def made_and_found(**where):
        folder = make(**where)
        if not found:
            found.append(os.open(folder, os.O_RDONLY))
            fcntl.flock(found[0], fcntl.LOCK_EX)
            if removed:
                shutil.rmtree(folder)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_found)
    folder = scratch()
    assert folder.is_dir()
    assert not is_free(folder)
    assert os.fstat(found[0]).st_ino != folder.stat().st_ino
    os.close(found[0])

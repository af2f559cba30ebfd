"""Temporary folders end with their owners."""

import os

import pytest

from bbgrap.session.temporary import folder_of


class Owner:
    """Something that has a folder."""


def test_a_folder_ends_with_its_owner():
    owner = Owner()
    folder = folder_of(owner, "bbgrap-test-")
    (folder / "file").write_bytes(b"content")
    del owner
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes fork on Unix")
def test_a_fork_child_leaves_it_alone(monkeypatch):
    owner = Owner()
    folder = folder_of(owner, "bbgrap-test-")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        del owner
        assert folder.exists()
    folder.rmdir()

import os
from pathlib import Path

import pytest

from bbgrap.errors import UsageError
from bbgrap.settings import files
from bbgrap.settings.files import read_files


@pytest.fixture
def places(tmp_path, monkeypatch):
    """The user's file and the project's, neither of which is there."""
    monkeypatch.delenv("BBGRAP_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for folder in (tmp_path / "home", tmp_path / "project" / "inside"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "home" / "bbgrap.toml", tmp_path / "project" / "bbgrap.toml"


def test_no_file_is_no_settings(places):
    assert read_files() == ((), ())


def test_the_projects_file_comes_after_the_users_and_is_not_looked_for_above(places, monkeypatch):
    for path in places:
        path.write_text("[bbgrap]\nseed = 1\n")
    found, _ = read_files()
    assert [(file.path.name, file.is_project) for file in found] == [("bbgrap.toml", False), ("bbgrap.toml", True)]
    monkeypatch.chdir("inside")
    assert [file.is_project for file in read_files()[0]] == [False]


def test_one_file_alone_can_be_named(places, tmp_path, monkeypatch):
    for path in places:
        path.write_text("[bbgrap]\nseed = 1\n")
    (tmp_path / "own.toml").write_text("[bbgrap]\ncoordinator = 'tcp://head:1'\n")
    monkeypatch.setenv("BBGRAP_CONFIG", str(tmp_path / "own.toml"))
    assert [file.path for file in read_files()[0]] == [tmp_path / "own.toml"]
    monkeypatch.setenv("BBGRAP_CONFIG", os.devnull)
    assert read_files() == ((), ())
    monkeypatch.setenv("BBGRAP_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match=r"none\.toml': No such file"):
        read_files()


@pytest.mark.parametrize(
    "said",
    [
        "[bbgrap]\ncoordinator = 'tcp://stranger:7070'",
        "[bbgrap.submit]\ntoken-file = 'x'",
        "[bbgrap]\noutput = '/home/me/.bashrc'",
        "[bbgrap]\ninsecure = true",
        "[bbgrap-agent]\nthreads = 2",
        "[bbgrap-coordinator]\nverify-fraction = 1",
    ],
)
def test_a_projects_file_says_neither_with_whom_nor_with_which_files(places, said):
    places[1].write_text(said)
    with pytest.raises(UsageError, match=r"a project's file.* put it in the user's"):
        read_files()


def test_a_slip_in_a_projects_file_is_told_what_it_should_be(places):
    places[1].write_text("[bbgrap]\nplaner = 'tofu'")
    with pytest.raises(UsageError, match="did you mean 'planner'"):
        read_files()


def test_a_file_of_an_editor_of_windows_is_toml(places):
    places[0].write_bytes(b"\xef\xbb\xbf[bbgrap]\r\nseed = 1\r\n")
    assert read_files()[0][0].tables == {"bbgrap": {"seed": 1}}


@pytest.mark.parametrize("content", [b"[bbgrap", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_no_toml(places, content):
    places[0].write_bytes(content)
    with pytest.raises(UsageError, match=r"settings file '.*bbgrap\.toml': no TOML"):
        read_files()


def test_a_users_file_that_others_write_is_refused(places):
    places[0].write_text("")
    places[0].chmod(0o646)
    with pytest.raises(UsageError, match="others can write it"):
        read_files()


def test_another_users_file_is_no_projects_file(places, monkeypatch):
    places[1].write_text("[bbgrap]\nseed = 1\n")
    monkeypatch.setattr(files, "is_others", lambda path: path == Path("bbgrap.toml"))
    found, remarks = read_files()
    assert found == ()
    assert remarks == (f"'{places[1]}' is left out: it belongs to another user",)

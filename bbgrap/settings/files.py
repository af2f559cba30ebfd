"""The files with settings: which there are, and what each may say.

    [bbgrap]              options of every command of bbgrap that has them
    [bbgrap.submit]       options of one command
    [bbgrap-agent]        options of an agent; [bbgrap-coordinator] those of a coordinator

The user's file is `~/.config/bbgrap.toml`, the project's is `bbgrap.toml` in the current folder, not above it. Law: whose folder one
works in may say how a model is run (`PROJECT_KEYS`), but not with whom, with which keys or on which files.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bbgrap.errors import UsageError
from bbgrap.user_folders import settings_folder

CONFIG = "BBGRAP_CONFIG"
"""The environment variable that names the only file to read."""
NAME = "bbgrap.toml"
PROGRAMS = ("bbgrap", "bbgrap-agent", "bbgrap-coordinator")
PROJECT_KEYS = frozenset(
    {
        "agents",
        "batch",
        "explain",
        "grid",
        "in-flight",
        "json",
        "layers",
        "layout",
        "mean",
        "measured",
        "normalize",
        "objective",
        "pictures",
        "planner",
        "run",
        "runs",
        "search-seconds",
        "seed",
        "shares",
        "size",
        "split",
        "std",
        "stream",
        "threads",
        "transfer-dtype",
        "verify",
    }
)
"""What a project's file may set. A list of what is allowed: an option that comes later is no way out."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """One file. `tables` is as it was written, its keys not yet compared with any option."""

    path: Path
    tables: Mapping[str, Any]
    is_project: bool = False


def read_files() -> tuple[tuple[SettingsFile, ...], tuple[str, ...]]:
    """Return the files that are there, the one that goes first last, and what is to be said of those left out.

    Raises:
        UsageError: if one cannot be used: the message has its path.
    """
    if os.environ.get(CONFIG):
        chosen = Path(os.environ[CONFIG])
        return (() if os.environ[CONFIG] == os.devnull else (_read(chosen),)), ()
    files, remarks = [], []
    user = _users_file()
    if user is not None and user.exists():
        _check_owner(user)
        files.append(_read(user))
    project = Path(NAME)
    if project.exists() and not (files and project.samefile(files[0].path)):
        if is_others(project):
            remarks.append(f"'{project.absolute()}' is left out: it belongs to another user")
        else:
            files.append(_read(project, is_project=True))
    return tuple(files), tuple(remarks)


def _users_file() -> Path | None:
    try:
        return settings_folder().with_name(NAME)
    except UsageError:  # a user without a home
        return None


def is_others(path: Path) -> bool:
    """Whether a file belongs to another user than this one and the administrator; where users have no numbers, nobody knows."""
    return hasattr(os, "geteuid") and path.stat().st_uid not in (os.geteuid(), 0)


def _check_owner(path: Path) -> None:
    if is_others(path) or (hasattr(os, "geteuid") and path.stat().st_mode & stat.S_IWOTH):
        raise UsageError(f"settings file '{path}': others can write it, and it says where keys go; chown it to yourself, chmod o-w")


def _read(path: Path, *, is_project: bool = False) -> SettingsFile:
    try:
        tables = tomllib.loads(path.read_text("utf-8-sig"))  # editors of Windows begin with a mark
    except OSError as error:
        raise UsageError(f"settings file '{path}': {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"settings file '{path}': no TOML: {error}") from None
    if is_project:
        _check_project(path, tables)
    return SettingsFile(path, tables, is_project)


def _check_project(path: Path, tables: Mapping[str, Any]) -> None:
    """Refuse what a project's file may not say, in whatever table it stands.

    Raises:
        UsageError: if there is such a thing.
    """
    for name, value in tables.items():
        if isinstance(value, Mapping) and name in ("bbgrap-agent", "bbgrap-coordinator"):
            raise UsageError(f"settings file '{path}': [{name}] has no place in a project's file; put it in the user's")
        if isinstance(value, Mapping):
            _check_project(path, value)
        elif name not in PROJECT_KEYS:
            near = difflib.get_close_matches(name, sorted(PROJECT_KEYS), 1, cutoff=0.8)
            raise UsageError(
                f"settings file '{path}': '{name}' may not stand in a project's file, which may be a stranger's;"
                + (f" did you mean '{near[0]}'? Else" if near else "")
                + f" put it in the user's file, or name this one by {CONFIG} if you trust it"
            )

"""Where a user's files are, by the XDG Base Directory Specification, and how those are written that nobody else may read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bbgrap.errors import UsageError


def cache_folder() -> Path:
    """Return where things are kept that can be made again.

    Raises:
        UsageError: if neither XDG_CACHE_HOME is set nor the user has a home.
    """
    return _folder("XDG_CACHE_HOME", ".cache")


def settings_folder() -> Path:
    """Return where settings and keys are.

    Raises:
        UsageError: if neither XDG_CONFIG_HOME is set nor the user has a home.
    """
    return _folder("XDG_CONFIG_HOME", ".config")


def write_private(path: Path, content: str) -> None:
    """Write a file that only its user can read, whole or not at all; when this returns, it is on the disk.

    Raises:
        OSError: if it cannot be written; an old one is there still.
    """
    write_all_private({path: content})


def write_all_private(contents: Mapping[Path, str]) -> None:
    """Write files that only their user can read, all of them or none; when this returns, they are on the disk.

    Raises:
        OSError: if one cannot be written, as on a full disk; old ones are there still.
    """
    drafts: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            drafts[path] = Path(draft)
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
        for path, done in drafts.items():
            done.replace(path)
    finally:
        for left in drafts.values():
            left.unlink(missing_ok=True)


def _folder(variable: str, usual: str) -> Path:
    try:
        return Path(os.environ.get(variable) or Path.home() / usual) / "bbgrap"
    except RuntimeError:
        raise UsageError(f"this user has no home folder: set HOME or {variable} to one that can be written") from None

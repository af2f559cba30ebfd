"""Where a user's files are, by the XDG Base Directory Specification."""

from __future__ import annotations

import os
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


def _folder(variable: str, usual: str) -> Path:
    try:
        return Path(os.environ.get(variable) or Path.home() / usual) / "bbgrap"
    except RuntimeError:
        raise UsageError(f"this user has no home folder: set HOME or {variable} to one that can be written") from None

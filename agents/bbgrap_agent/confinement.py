"""What a worker does without: it runs models of strangers, and needs the data plane and the agent's cache."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

from bbgrap.file_locks import lock_at
from bbgrap.transport.confinement import Permissions, confine
from bbgrap_agent.weights import MAX_WEIGHT_BYTES

_FILES = 1 << 16
"""Descriptors: of connections."""
_SPARE_BYTES = 1 << 20
"""What a file of a weight has besides."""

_TRIES = 10
"""To make a folder that no other worker takes for left; where folders cannot be locked, one that is not is used."""

_log = logging.getLogger("bbgrap.agent")


def confine_worker(cache: Path) -> None:
    """Take from this process what it does without, and give it a folder for temporary files; before it has threads."""
    cache.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(_scratch(cache))
    missing = confine(Permissions(_FILES, MAX_WEIGHT_BYTES + _SPARE_BYTES, connects=True, owns=(cache,)))
    if missing:
        _log.warning("the worker is less confined than it should be: %s", "; ".join(missing))
    else:
        _log.info("the worker is confined: memory, files, calls and folders")


def _scratch(cache: Path) -> Path:
    """Make a folder that is locked as long as this process lives; those that nobody has locked are removed: their workers were killed."""
    for left in cache.glob("scratch-*"):
        if lock_at(left) is not None:
            shutil.rmtree(left, ignore_errors=True)
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(dir=cache, prefix="scratch-"))
        if lock_at(folder) is not None:
            return folder
        # Another worker that starts now has found it before it was locked, and removes it.
    return Path(tempfile.mkdtemp(dir=cache, prefix="scratch-"))

"""How many files and connections this process may have open."""

from __future__ import annotations

from contextlib import suppress


def allow_many_descriptors() -> None:
    """Have the system's limit be the one that it would grant: strangers who knock take a descriptor each, for a moment."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # not on every system

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""What a coordinator keeps over its end, however it ends: one SQLite database in the state directory, beside the files by digest and job.

    numbers    incarnation, data_port, saw_agents, maker (of the plans)
    models     what files a model has
    profiles   of nodes by name, measured and by hand
    plans      what planning came to, with the digest of its artifacts; `place` grows with every save

Laws: the incarnation is larger at every start, and on the disk before `StateDatabase` can be used; whatever was saved is read again or
dropped with a line in the log, never a reason not to start; one coordinator at a time uses a state directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgpack

from bbgrap.cluster.types import NodeProfile
from bbgrap.control.saved_state import StoredPlan
from bbgrap.errors import BbgrapError, UsageError
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.protocol.schema import SchemaError
from bbgrap_coordinator.artifacts import packed, unpacked
from bbgrap_coordinator.reserve import Reserve

SCHEMA_VERSION = 1

_TABLES = {
    "numbers": "CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "models": "CREATE TABLE models (digest TEXT PRIMARY KEY, content BLOB NOT NULL)",
    "profiles": "CREATE TABLE profiles (node TEXT, by_hand INTEGER, content BLOB NOT NULL, PRIMARY KEY (node, by_hand))",
    "plans": "CREATE TABLE plans (job INTEGER PRIMARY KEY, place INTEGER NOT NULL, artifacts TEXT NOT NULL, content BLOB NOT NULL)",
}

_FIRST_INCARNATIONS = 1 << 24
"""The first incarnation of a state directory is one of these, by chance: agents may still hold epochs of one that is gone."""
_MAX_INCARNATION = 1 << 30
"""Epochs of larger ones could not be sent; nobody starts a coordinator so often."""

T = TypeVar("T")

_log = logging.getLogger("bbgrap.coordinator")


@dataclass(frozen=True, slots=True)
class _Files:
    files: tuple[ModelFile, ...]


class StateDatabase:
    """The database of a coordinator, and the lock on its state directory.

    Invariants: used by one thread at a time; `incarnation` is committed.
    """

    def __init__(self, directory: Path, reserve: Reserve | None = None, maker: str = "") -> None:
        """Open it, or make it; what cannot be read is renamed, with a warning. A reserve is given up before, for room to write.

        Plans are made again if another `maker` (what code, with what libraries) was the last to use it.

        Raises:
            UsageError: if another coordinator uses the directory, or it cannot be written.
        """
        self._lock = _locked(directory)
        if reserve is not None:
            reserve.give_up()
        try:
            self._database = _opened(directory / "state.db")
            self.incarnation = (self._last_incarnation() or secrets.randbelow(_FIRST_INCARNATIONS)) + 1
            self._begin(maker)
        except sqlite3.Error as error:
            os.close(self._lock)
            raise UsageError(f"state directory '{directory}': its database cannot be used: {error}; is the disk full?") from None

    def close(self) -> None:
        """Close the database and let others use the directory."""
        self._database.close()
        os.close(self._lock)

    # --- numbers ----------------------------------------------------------------------------------------------------------------------

    def number(self, name: str) -> int:
        """Return a number that was kept; 0 if there is none."""
        row = self._database.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row is not None and isinstance(row[0], int) else 0

    def _last_incarnation(self) -> int:
        """Return that of the last start; 0 if there was none, or it is damaged."""
        last = self.number("incarnation")
        if 0 <= last < _MAX_INCARNATION:
            return last
        _log.warning("incarnation %d in the state directory is none, and is dropped", last)
        return 0

    def _begin(self, maker: str) -> None:
        """Keep the incarnation and whose it is, and forget the plans of another maker."""
        last, own = (
            int.from_bytes(hashlib.sha256(f"{number} {maker}".encode()).digest()[:7]) for number in (self.incarnation - 1, self.incarnation)
        )
        self._database.execute("BEGIN IMMEDIATE")
        is_others = self.number("maker") != last
        plans = self._database.execute("DELETE FROM plans").rowcount if is_others else 0
        self.set_number("incarnation", self.incarnation)
        self.set_number("maker", own)
        self._database.execute("COMMIT")
        if plans:
            _log.info("plans of another version of bbgrap or onnxruntime are made again when they are asked for: %d", plans)

    def set_number(self, name: str, value: int) -> None:
        """Keep a number."""
        self._database.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (name, value))

    # --- models and profiles ----------------------------------------------------------------------------------------------------------

    def save_model(self, model: str, files: tuple[ModelFile, ...]) -> None:
        """Keep what files a model has."""
        self._database.execute("INSERT OR REPLACE INTO models VALUES (?, ?)", (model, packed(_Files(files))))

    def models(self, sizes: Mapping[str, int]) -> dict[str, tuple[ModelFile, ...]]:
        """Return the files of models; those of which one is not among `sizes` (by digest) any more are forgotten."""
        found = {}
        for digest, content in self._rows("SELECT digest, content FROM models"):
            files = self._read(_Files, content, f"model {str(digest)[:12]}")
            if files is not None and all(sizes.get(file.digest) == file.size for file in files.files):
                found[str(digest)] = files.files
            else:
                self._database.execute("DELETE FROM models WHERE digest = ?", (digest,))
        return found

    def save_profile(self, profile: NodeProfile, *, by_hand: bool) -> None:
        """Keep what is known of a node."""
        self._database.execute("INSERT OR REPLACE INTO profiles VALUES (?, ?, ?)", (profile.name, int(by_hand), packed(profile)))

    def forget_profile(self, node: str, *, by_hand: bool) -> None:
        """Keep no longer what is known of a node."""
        self._database.execute("DELETE FROM profiles WHERE node = ? AND by_hand = ?", (node, int(by_hand)))

    def profiles(self, *, by_hand: bool) -> dict[str, NodeProfile]:
        """Return what is known of nodes, by their names."""
        rows = self._rows("SELECT node, content FROM profiles WHERE by_hand = ?", int(by_hand))
        read = {str(node): self._read(NodeProfile, content, f"profile of '{node}'") for node, content in rows}
        return {node: profile for node, profile in read.items() if profile is not None}

    # --- plans ------------------------------------------------------------------------------------------------------------------------

    def save_plan(self, plan: StoredPlan, artifacts: str) -> None:
        """Keep a plan, as the one saved last."""
        query = "INSERT OR REPLACE INTO plans SELECT ?, coalesce(max(place), 0) + 1, ?, ? FROM plans"
        self._database.execute(query, (plan.job, artifacts, packed(plan)))

    def forget_plan(self, job: int) -> None:
        """Keep it no longer."""
        self._database.execute("DELETE FROM plans WHERE job = ?", (job,))

    def plans(self) -> list[tuple[StoredPlan, str]]:
        """Return the plans and the digests of their artifacts, the one saved last first."""
        found = []
        for job, artifacts, content in self._rows("SELECT job, artifacts, content FROM plans ORDER BY place DESC"):
            plan = self._read(StoredPlan, content, f"plan of job {job}")
            if plan is not None and plan.job == job:
                found.append((plan, str(artifacts)))
            else:
                self.forget_plan(int(job))
        return found

    def _rows(self, query: str, *values: int) -> Iterator[tuple[Any, ...]]:
        yield from self._database.execute(query, values).fetchall()

    def _read(self, kind: type[T], content: object, what: str) -> T | None:
        try:
            assert isinstance(content, bytes)
            return unpacked(kind, content)
        except (SchemaError, BbgrapError, AssertionError, ValueError, RecursionError, msgpack.UnpackException) as error:
            _log.warning("%s in the state directory cannot be read and is dropped: %s", what, str(error)[:200])
            return None


def _locked(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"state directory '{directory}': it cannot be written: {error.strerror}; choose another with --state-dir"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            why = "another coordinator uses it; stop that one, or choose another directory with --state-dir"
        else:  # as on network file systems that are mounted without locks
            why = f"its file system takes no locks: {error.strerror}; choose a directory on a disk of this machine with --state-dir"
        raise UsageError(f"state directory '{directory}': {why}") from None
    return descriptor


class _ForeignError(Exception):
    """A database is not one of ours; the message says how."""


def _opened(path: Path) -> sqlite3.Connection:
    """Open a database, or make a new one if there is none or it is damaged or another program's."""
    try:
        return _checked(path)
    except (sqlite3.DatabaseError, _ForeignError) as error:
        if isinstance(error, sqlite3.OperationalError):  # no fault of the file: no room, no permission
            raise
        aside = next(aside for n in range(1, 1 << 30) if not (aside := path.with_name(f"{path.name}.damaged-{n}")).exists())
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        _log.warning("the database '%s' is damaged or not ours (%s): it is kept as '%s', and a new one begins", path, error, aside.name)
        return _checked(path)


def _checked(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        faults = [row[0] for row in database.execute("PRAGMA quick_check(1)") if row[0] != "ok"]
        tables = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if faults or ((tables or version) and (version, tables) != (SCHEMA_VERSION, _TABLES)):
            raise _ForeignError(faults[0] if faults else f"version {version} with {len(tables)} tables")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if not tables:
            statements = [*_TABLES.values(), f"PRAGMA user_version = {SCHEMA_VERSION}"]
            database.executescript("BEGIN; " + "; ".join(statements) + "; COMMIT")
    except BaseException:
        database.close()
        raise
    return database

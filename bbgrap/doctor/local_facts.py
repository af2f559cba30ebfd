"""Finding out how bbgrap is installed on this machine, and what it would meet here; no coordinator is needed."""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from bbgrap.doctor.machine import read_machine
from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.inspection import MachineFacts
from bbgrap.protocol.version import VERSION
from bbgrap.transport.control_client import is_listening
from bbgrap.transport.control_sockets import DEFAULT_PORT

_CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class Package:
    """A package that bbgrap needs, and the version that is there; empty: none."""

    name: str
    needed: str
    found: str
    fits: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that some process of bbgrap writes to; `fault` says why that cannot be done, `option` chooses another one."""

    what: str
    path: str
    option: str
    fault: str


@dataclass(frozen=True, slots=True)
class ResolvedHost:
    """A name and its addresses; `fault` says why there are none."""

    name: str
    addresses: tuple[str, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """This machine; `coordinator` is the host of the one that was named, None if none was."""

    python: tuple[int, int]
    version: str
    installed: str
    packages: tuple[Package, ...]
    machine: MachineFacts
    folders: tuple[Folder, ...]
    own_name: ResolvedHost
    coordinator: ResolvedHost | None
    address: str
    is_listening: bool
    encoding: str


def read_here(address: str, cache: Path, state: Path, keys: Path) -> LocalFacts:
    """Find out; `address` is the coordinator's, empty for none: then the port is looked at that one would take here."""
    folders = (
        Folder("weights of agents", str(cache), "--cache-dir", write_fault(cache)),
        Folder("state of a coordinator", str(state), "--state-dir", write_fault(state)),
        Folder("keys of agents", str(keys), "--keys-dir", write_fault(keys)),
        _temporary(),
    )
    machine = read_machine(cache, "localhost")
    at = address or f"tcp://127.0.0.1:{DEFAULT_PORT}"
    installed = ""
    with suppress(metadata.PackageNotFoundError):
        installed = metadata.version("bbgrap")
    return LocalFacts(
        python=sys.version_info[:2],
        version=VERSION,
        installed=installed,
        packages=tuple(_packages()),
        machine=machine,
        folders=folders,
        own_name=look_up(platform.node()),
        coordinator=look_up(split_address(address)[0].strip("[]")) if address else None,
        address=at,
        is_listening=is_listening(at, _CONNECT_S),
        encoding=sys.getfilesystemencoding(),
    )


def _temporary() -> Folder:
    try:
        folder = tempfile.gettempdir()
    except OSError:  # Python has tried to write to all of them
        return Folder("temporary files", "/tmp, and what is used in its place,", "TMPDIR", "none takes a file")  # noqa: S108 - only named
    return Folder("temporary files", folder, "TMPDIR", write_fault(Path(folder)))


def look_up(name: str) -> ResolvedHost:
    """Return the addresses of a name."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return ResolvedHost(name, (), getattr(error, "strerror", None) or "no such name")
    return ResolvedHost(name, tuple(dict.fromkeys(str(place[0]) for *_, place in found)))


def write_fault(folder: Path) -> str:
    """Return why a file cannot be made in a folder, or in the first of those above it that is there; empty if it can."""
    try:
        there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"bbgrap")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def warn_of_packages(log: logging.Logger) -> None:
    """Say which packages are of another version than bbgrap needs: some of those answer wrongly and say nothing."""
    for package in _packages():
        if not package.fits:
            log.warning("bbgrap needs %s %s, here is %s: install it again", package.name, package.needed, package.found or "none")


def _packages() -> Iterator[Package]:
    """Yield what the installed bbgrap says it needs; nothing where it is used without being installed."""
    try:
        needed = metadata.requires("bbgrap") or []
    except metadata.PackageNotFoundError:
        return
    for text in needed:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            found = ""
        yield Package(requirement.name, str(requirement.specifier), found, bool(found) and requirement.specifier.contains(found, True))

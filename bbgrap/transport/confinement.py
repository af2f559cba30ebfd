"""What is taken from a process before it reads strangers' models, so that one that takes it over can do little with it.

    powers     those of root, where it has them                                                    Linux
    limits     memory of its own, size of a file, descriptors, no core dumps                       every Unix
    calls      no processes, programs, signals to others, looks into others, sockets beyond need   Linux on x86-64 and aarch64 (seccomp)
    folders    what is named is read, what is named is written, and nothing else                   Linux 5.13 and later (Landlock)

Laws: it needs no rights; nothing of it can be given back; what the kernel lacks is left out and returned in words, for the log. Folders
bind the calling thread and those it starts later, so this is called before there are others.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bbgrap.transport.forbidden_calls import ARCHITECTURES, program

MEMORY_PART = 0.75
"""Of the machine's memory, what one such process may have for itself. Chosen: the rest is for those that serve."""

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP, _SET_FILTER, _ALL_THREADS, _KEEP_SPEED = 317, 1, 1, 4
"""Without `_KEEP_SPEED`, kernels before 5.16 slow a filtered process down against Spectre 4, which is no matter here: it has no secrets."""
_SECCOMP_AARCH64 = 277
_CAPSET, _CAPSET_AARCH64, _CAPABILITIES = 126, 91, 0x20080522

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_ASKED = 1
_BENEATH, _NET_PORT = 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_REMOVE = 1 << 4 | 1 << 5
_MAKE_DIR, _MAKE_REG = 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_READS = _READ_FILE | _READ_DIR
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_LATER = (1 << 16) - 1
_BIND_TCP = 1
_SCOPES = 3
"""Abstract Unix sockets, and signals: only to processes that are bound like this one."""

_THREADS = "/proc/self/task"

_SYSTEM = ("/usr", "/lib", "/lib64", "/proc", "/sys/devices", "/sys/fs/cgroup", "/dev/urandom", "/dev/zero")
_SETTINGS = ("ld.so.cache", "localtime", "hosts", "host.conf", "gai.conf", "resolv.conf", "nsswitch.conf", "services", "protocols")


@dataclass(frozen=True, slots=True)
class Permissions:
    """What is left to a process."""

    files: int
    """Descriptors."""
    file_bytes: int
    """Of any file that it writes."""
    connects: bool
    """Whether it may have internet sockets, as the data plane needs; it listens at no port that others know."""
    reads: tuple[Path, ...] = ()
    """Folders it may read, beside Python, its packages and the system's libraries."""
    adds: tuple[Path, ...] = ()
    """Folders it may read, and write new files to. It cannot shorten a file there: whoever has it mapped would die of that (SIGBUS)."""
    owns: tuple[Path, ...] = ()
    """Folders in which it may do everything with plain files."""


def confine(permissions: Permissions) -> tuple[str, ...]:
    """Take from this process all but what is in the permissions; return what could not be taken, in words."""
    missing = [] if _limit(permissions) else ["this system has no limits of memory (RLIMIT_DATA)"]
    if not sys.platform.startswith("linux"):
        return (*missing, "only Linux can forbid calls and folders")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Root without its powers may do with its own files what others may.
    libc.syscall(_CAPSET if platform.machine() == "x86_64" else _CAPSET_AARCH64, struct.pack("=Ii", _CAPABILITIES, 0), bytes(24))
    for take in (_forbid_folders, _forbid_calls):  # in this order: the calls of the first are among those that the second forbids
        fault = take(libc, permissions)
        missing += [fault] if fault else []
    return tuple(missing)


def memory_bound() -> int:
    """Return how many bytes a confined process may have for itself; files that it maps for reading do not count."""
    return int(MEMORY_PART * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _limit(permissions: Permissions) -> bool:
    try:
        import resource  # not on every system
    except ImportError:
        return False
    # Not RLIMIT_AS: weights are mapped files, and libraries reserve address space that they never use.
    chosen = [(resource.RLIMIT_NOFILE, permissions.files), (resource.RLIMIT_FSIZE, permissions.file_bytes), (resource.RLIMIT_CORE, 0)]
    chosen.append((resource.RLIMIT_DATA, memory_bound()))
    for kind, most in chosen:
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):  # some systems refuse some
            resource.setrlimit(kind, (bound, bound))
    return sys.platform.startswith("linux")


# --- calls ------------------------------------------------------------------------------------------------------------------------


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def _forbid_calls(libc: ctypes.CDLL, permissions: Permissions) -> str:
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        return f"calls are forbidden on {', '.join(ARCHITECTURES)}, not on {machine}"
    code = program(machine, os.getpid(), connects=permissions.connects)
    content = ctypes.create_string_buffer(code, len(code))
    filter_ = _Program(len(code) // 8, ctypes.addressof(content))
    number = _SECCOMP if machine == "x86_64" else _SECCOMP_AARCH64
    if libc.syscall(number, _SET_FILTER, _ALL_THREADS | _KEEP_SPEED, ctypes.byref(filter_)):
        return f"this kernel takes no filter of calls (seccomp): {os.strerror(ctypes.get_errno())}"
    return ""


# --- folders ----------------------------------------------------------------------------------------------------------------------


def _forbid_folders(libc: ctypes.CDLL, permissions: Permissions) -> str:
    abi = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_ASKED)
    if abi < 1:
        return f"this kernel cannot forbid folders (Landlock): {os.strerror(ctypes.get_errno())}"
    every = _ALL_BY_ABI.get(abi, _ALL_LATER)
    words = (every, _BIND_TCP, _SCOPES)[: 1 if abi < 4 else 2 if abi < 6 else 3]
    handled = struct.pack(f"={len(words)}Q", *words)
    ruleset = libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if ruleset < 0:
        return f"this kernel cannot forbid folders (Landlock): {os.strerror(ctypes.get_errno())}"
    own = _WRITE_FILE | _TRUNCATE | _REMOVE | _MAKE_DIR | _MAKE_REG | _READS
    rules = [(path, _READS) for path in (*_needed(), *permissions.reads)]
    rules += [(path, own & ~_TRUNCATE | _REFER) for path in permissions.adds] + [(path, own) for path in permissions.owns]
    unbound = _unbound()
    try:
        for path, rights in (*rules, (Path("/dev/null"), _READ_FILE | _WRITE_FILE | _TRUNCATE)):
            _allow(libc, ruleset, path, rights & every)
        if abi >= 4 and permissions.connects:
            port = struct.pack("=QQ", _BIND_TCP, 0)  # at a port that the kernel chooses
            libc.syscall(_ADD_RULE, ruleset, _NET_PORT, port, 0)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0):
            return f"this kernel cannot forbid folders (Landlock): {os.strerror(ctypes.get_errno())}"
    finally:
        os.close(ruleset)
    if unbound:
        return unbound
    return "" if abi >= 3 else "this kernel is older than 6.2: a file that others have mapped can be cut short"


def _unbound() -> str:
    """Return which threads rules of folders do not bind, as they bind the one that asks for them and those it starts; empty: none."""
    try:
        others = len(os.listdir(_THREADS)) - 1  # noqa: PTH208 - names are enough
    except OSError:
        return f"without {_THREADS} nobody knows whether threads were there already, which are not bound to folders"
    return f"{others} threads were there already, and are not bound to folders (set OPENBLAS_NUM_THREADS=1)" if others else ""


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    """Add a rule; what is not there needs none."""
    if sys.platform != "linux":
        return
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
        libc.syscall(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)


def _needed() -> Iterator[Path]:
    """Yield what Python and its libraries read as they run."""
    yield from map(Path, (*_SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix))
    yield from (Path("/etc") / name for name in _SETTINGS)
    yield from (Path(path) for path in sys.path if path.endswith(("-packages", "lib-dynload")))
    # Where packages are that are loaded: in an environment of a developer they lie elsewhere.
    packages = (module for name, module in tuple(sys.modules.items()) if "." not in name)
    yield from (Path(path) for package in packages for path in getattr(package, "__path__", ()) if isinstance(path, str))

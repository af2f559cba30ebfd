"""A confined process can do what it is for, and nothing of what someone who has taken it over would want."""

import ctypes
import json
import os
import socket
import subprocess
import sys

import pytest

from bbgrap.transport import confinement
from bbgrap.transport.forbidden_calls import _OF_ITSELF, _PLAIN, _SOCKETS, ARCHITECTURES, program

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there are only limits")

SCRIPT = """
import ctypes, fcntl, json, os, resource, signal, socket, subprocess, sys, threading
from pathlib import Path
import numpy as np
import onnxruntime
from bbgrap.transport.confinement import Permissions, confine

home, connects, outside = Path(sys.argv[1]), sys.argv[2] == "connects", int(sys.argv[3])
listener = socket.create_server(("127.0.0.1", 0))
inherited = open(home / "secret")
missing = confine(Permissions(64, 1 << 20, connects, (home / "reads",), (home / "adds",), (home / "owns",)))
said = {"missing": missing}

def attempt(name):
    def run(work):
        try:
            work()
            said[name] = "done"
        except BaseException as error:
            said[name] = type(error).__name__
    return run

@attempt("computes in threads")
def _():
    thread = threading.Thread(target=lambda: np.ones((64, 64)) @ np.ones((64, 64)))
    thread.start()
    thread.join()

attempt("reads")(lambda: (home / "reads/file").read_text())
attempt("imports")(lambda: __import__("sqlite3"))
attempt("adds")(lambda: (home / "adds/new").open("xb").write(b"1"))
attempt("adds a folder")(lambda: (home / "adds/folder").mkdir())
attempt("links what is there")(lambda: os.link(home / "adds/file", home / "adds/folder/link"))
attempt("owns")(lambda: (home / "owns/file").write_text("much"))
attempt("shortens its own")(lambda: os.truncate(home / "owns/file", 1))
attempt("ends itself")(lambda: os.kill(os.getpid(), 0))

attempt("gives way")(lambda: os.nice(1))
attempt("pins itself")(lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))

attempt("reads a secret")(lambda: (home / "secret").read_text())
attempt("lists others")(lambda: list(home.iterdir()))
attempt("reads the environment of others")(lambda: Path(f"/proc/{outside}/environ").read_bytes())
attempt("writes where it reads")(lambda: (home / "reads/file").write_text("x"))
attempt("writes elsewhere")(lambda: (home / "new").write_text("x"))
attempt("shortens")(lambda: os.truncate(home / "adds/file", 0))
attempt("shortens by opening")(lambda: (home / "adds/file").open("wb"))
attempt("links a secret")(lambda: os.link(home / "secret", home / "adds/secret"))
attempt("links to a secret")(lambda: (home / "adds/way").symlink_to(home / "secret"))
attempt("makes a pipe")(lambda: os.mkfifo(home / "adds/pipe"))
attempt("makes it readable")(lambda: os.chmod(home / "adds/file", 0o777))
attempt("writes a large file")(lambda: (home / "owns/large").write_bytes(bytes(2 << 20)))
attempt("takes much memory")(lambda: bytearray(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
attempt("gets limits back")(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30)))
attempt("forks")(lambda: os.fork() or os._exit(0))
attempt("starts a program")(lambda: os.execv("/bin/true", ["true"]))
attempt("starts a process")(lambda: subprocess.run(["/bin/true"]))
attempt("signals others")(lambda: os.kill(outside, 0))
attempt("has a descriptor signal others")(lambda: fcntl.fcntl(inherited, fcntl.F_SETOWN, outside))
attempt("has it end them")(lambda: fcntl.fcntl(inherited, 10, signal.SIGKILL))
attempt("does not wait for a descriptor")(lambda: os.set_blocking(inherited.fileno(), False))
attempt("talks to others' sockets")(lambda: socket.socket(socket.AF_UNIX))
attempt("talks to the kernel")(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("raw packets")(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("a socket")(lambda: socket.socket())
attempt("connects")(lambda: socket.create_connection(listener.getsockname()))
attempt("accepts")(lambda: listener.accept())
attempt("listens somewhere")(lambda: socket.create_server(("127.0.0.1", 0)))
attempt("listens at a port that is known")(lambda: socket.create_server(("127.0.0.1", 7171)))

attempt("takes descriptors")(lambda: [os.dup(0) for _ in range(100)])
libc = ctypes.CDLL(None, use_errno=True)
for name, number in json.loads(sys.argv[4]).items():
    ctypes.set_errno(0)
    said["call " + name] = "done" if libc.syscall(number, -1, -1, -1, -1, -1, -1) != -1 else os.strerror(ctypes.get_errno())
print(json.dumps(said))
"""

MAY = {"computes in threads", "reads", "imports", "adds", "adds a folder", "links what is there", "owns", "shortens its own", "ends itself"}
MAY |= {"does not wait for a descriptor", "gives way", "pins itself"}
MAY_CONNECTED = {"a socket", "connects", "accepts", "listens somewhere"}


@pytest.mark.parametrize("how", ["alone", "connects"])
def test_what_a_confined_process_can_do(tmp_path, how):
    for folder in ("reads", "adds", "owns"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("content")
    (tmp_path / "secret").write_text("secret")
    column = list(ARCHITECTURES).index(os.uname().machine)
    calls = _PLAIN if how == "connects" else _PLAIN | _SOCKETS
    calls = calls | {name: numbers for name, (numbers, _) in _OF_ITSELF.items()}  # of others: all arguments are -1
    numbers = {name: numbers[column] for name, numbers in calls.items() if numbers[column] is not None and name not in {"fork", "vfork"}}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), how, str(os.getpid()), json.dumps(numbers)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    # What a kernel forbids grows with its version; this test is strict on all.
    version = ctypes.CDLL(None).syscall(confinement._CREATE_RULESET, None, ctypes.c_size_t(0), confinement._VERSION_ASKED)
    assert said.pop("missing") == (
        [] if version >= 3 else ["this kernel is older than 6.2: a file that others have mapped can be cut short"]
    )
    older = {"shortens", "shortens by opening"} if version < 3 else set()
    if version < 4 and how == "connects":
        older.add("listens at a port that is known")
    done = {name for name, how in said.items() if how == "done"}
    assert done == MAY | older | (MAY_CONNECTED if how == "connects" else set())
    refused = {name: how for name, how in said.items() if name.startswith("call ")}
    assert set(refused.values()) == {"Operation not permitted"}, refused
    assert (tmp_path / "adds/file").read_text() == ("content" if version >= 3 else "")


def test_what_is_missing_is_said(monkeypatch):
    """On a machine whose calls nobody has numbered, and on a kernel without Landlock, in a process that is not to be confined."""

    class Kernel:
        def syscall(self, *_):
            return -1

    bounds = confinement.Permissions(64, 1 << 20, connects=False)
    monkeypatch.setattr(confinement.platform, "machine", lambda: "riscv64")
    assert confinement._forbid_calls(Kernel(), bounds) == "calls are forbidden on x86_64, aarch64, not on riscv64"
    assert "cannot forbid folders (Landlock)" in confinement._forbid_folders(Kernel(), bounds)
    monkeypatch.setattr(confinement.platform, "machine", lambda: "aarch64")
    assert "takes no filter of calls (seccomp)" in confinement._forbid_calls(Kernel(), bounds)


def evaluate(code, machine, number, arguments=()):
    """Run a filter as the kernel does, and return what it says."""
    fields = {0: number, 4: ARCHITECTURES[machine]}
    for place, value in enumerate(arguments):
        fields[16 + 8 * place], fields[20 + 8 * place] = value & 0xFFFFFFFF, value >> 32
    place, held = 0, 0
    while True:
        kind, yes, no, value = (int.from_bytes(code[8 * place :][a:b], sys.byteorder) for a, b in ((0, 2), (2, 3), (3, 4), (4, 8)))
        place += 1
        match kind:
            case 0x20:
                held = fields.get(value, 0)
            case 0x54:
                held &= value
            case 0x06:
                return value
            case _:
                holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[kind]
                place += yes if holds else no


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_the_filter_of_every_machine(machine, column):
    allow, refuse = 0x7FFF0000, 0x00050001
    alone, connected = (program(machine, 42, connects=connects) for connects in (False, True))
    for numbers in _PLAIN.values():
        if numbers[column] is not None:
            assert {evaluate(code, machine, numbers[column]) for code in (alone, connected)} == {refuse}
    clone, kill, prlimit, sock, ioctl, fcntl = ((56, 220), (62, 129), (302, 261), (41, 198), (16, 29), (72, 25))
    for call, arguments, wanted in (
        *((_OF_ITSELF["setpriority"][0], who, refuse) for who in ([0, 43], [1, 0], [2, 0])),
        (_OF_ITSELF["sched_setaffinity"][0], [43], refuse),
        *((numbers, [0, 0, 19], allow) for numbers, _ in _OF_ITSELF.values()),
        (clone, [0x10000], allow),
        (clone, [17], refuse),
        (kill, [42, 9], allow),
        (kill, [43, 9], refuse),
        (prlimit, [0, 7, 0], allow),
        (prlimit, [0, 7, 1 << 40], refuse),
        (sock, [socket.AF_INET, socket.SOCK_STREAM | 0o2000000], allow),
        (sock, [10, socket.SOCK_DGRAM], allow),
        (sock, [socket.AF_INET, socket.SOCK_RAW], refuse),
        (sock, [16, socket.SOCK_DGRAM], refuse),
        (ioctl, [0, 0x5412], refuse),
        (ioctl, [0, 0x541C], refuse),
        (ioctl, [0, 0x5401], allow),
        *((ioctl, [0, command], refuse) for command in (0x8901, 0x8902)),
        *((fcntl, [0, command], refuse) for command in (8, 10, 15, 1024, 1026)),
        *((fcntl, [0, command], allow) for command in (0, 1, 2, 3, 4, 1030, 1033)),
        ((435, 435), [], 0x00050026),
        ((0, 63), [], allow),
    ):
        assert evaluate(connected, machine, call[column], arguments) == wanted, (call, arguments)
    assert evaluate(alone, machine, sock[column], [socket.AF_INET, socket.SOCK_STREAM]) == refuse
    assert evaluate(connected, machine, 0x40000000 | 1) == refuse
    other = next(name for name in ARCHITECTURES if name != machine)
    assert evaluate(program(other, 42, connects=True), machine, 0) == 0x80000000


WITHOUT_PROC = """
import sys
from pathlib import Path
from bbgrap.transport import confinement

confinement._THREADS = "/nowhere/task"
print(*confinement.confine(confinement.Permissions(64, 1 << 20, connects=True)), sep="; ")
print(Path(sys.argv[1]).read_text())
"""


def test_where_threads_cannot_be_counted_a_process_is_confined_all_the_same_and_that_is_said(tmp_path):
    """Without /proc it ended instead: no worker and no planner started."""
    (tmp_path / "secret").write_text("a secret")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PROC, str(tmp_path / "secret")], capture_output=True, text=True, check=False, timeout=60
    )
    if "cannot forbid folders" in done.stdout:
        pytest.skip("this kernel has no Landlock")
    assert "without /nowhere/task nobody knows whether threads were there already" in done.stdout
    assert "PermissionError" in done.stderr
    assert "a secret" not in done.stdout

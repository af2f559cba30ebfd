"""What faults are done to: the machines of a cluster, their links and files, and the history that all of it goes into."""

from __future__ import annotations

import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bbgrap.errors import BbgrapError, ClusterUnavailableError
from bbgrap.protocol.status_messages import NodeStatus
from bbgrap.session import Connection
from benchmarks.clients import History
from benchmarks.lan import Lan
from benchmarks.machines import COORDINATOR, Machines
from benchmarks.recovery import ClientProcess, clients_of

FREEZER, MEMORY = Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup/memory")
RESTART_S = 30.0
"""How long a coordinator may refuse to start."""
CLIENTS, GUESTS = "clients", "guests"
"""The names of the two tokens that clients have; those of guests are taken back."""
DISK_BYTES = 2 << 30
"""Of a machine's folder, where it is a file system of its own."""


@dataclass
class World:
    """A cluster to be hurt.

    Invariants: `hurt` are the machines, and pairs of them, to which something is being done.
    """

    machines: Machines
    history: History
    agents: tuple[str, ...]
    rng: random.Random
    connection: Connection
    tell: Callable[[str], None]
    """Says something to the clients that nobody kills."""
    victims: Callable[[], None]
    """Kills the clients that may be killed, and starts others."""
    guests: ClientProcess
    """Clients with a token of their own, which may be taken back."""
    hurt: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: int = 0

    @property
    def lan(self) -> Lan:
        """The network.

        Raises:
            AssertionError: if there is none; such faults are not drawn then.
        """
        assert self.machines.lan is not None
        return self.machines.lan

    def number(self) -> int:
        """Return a number that was not there before."""
        with self.lock:
            self.numbers += 1
            return self.numbers

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Return the agents that the coordinator knows; none while it does not answer."""
        with suppress(BbgrapError):
            return self.connection.nodes()
        return ()

    def present(self) -> bool:
        """Whether the coordinator knows all agents, and all of them reach each other."""
        nodes = self.nodes()
        return {node.name for node in nodes} == set(self.agents) and not any(node.unreachable for node in nodes)

    def data_port(self, agent: str) -> int:
        """Return the port of an agent's data plane, 0 if it is not known."""
        return next((int(node.address.rpartition(":")[2]) for node in self.nodes() if node.name == agent), 0)

    # --- what several faults do ---------------------------------------------------------------------------------------------------

    def restart(self, machine: str) -> None:
        """Start an agent that was killed, or the coordinator, again and again until it listens: so does a service manager."""
        self.machines.start(machine)
        until = time.monotonic() + RESTART_S
        while machine == COORDINATOR:
            try:
                self.machines.wait_coordinator()
            except ClusterUnavailableError as error:
                if time.monotonic() > until:
                    raise
                # For example while its disk is full.
                self.history.note("did not start", machine=machine, text=str(error).splitlines()[-1][:500])
                time.sleep(0.3)
                self.machines.start(machine)
            else:
                return

    def grouped(self, controller: Path, machine: str) -> Path:
        """Put a machine's processes into a control group of their own, and return its folder."""
        group = controller / f"bbgrap-{self.machines.home.name}-{machine}"
        group.mkdir(exist_ok=True)
        for process in self.machines.tree(machine):
            with suppress(OSError):
                (group / "cgroup.procs").write_text(str(process.pid))
        return group

    def ungroup(self) -> None:
        """Remove the control groups; whoever is in them must have ended."""
        for controller in (FREEZER, MEMORY):
            for group in controller.glob(f"bbgrap-{self.machines.home.name}-*"):
                with suppress(OSError):
                    group.rmdir()

    def fill(self, machine: str) -> Path:
        """Fill a machine's file system; removing the returned file heals it."""
        filler = self.machines.folder(machine) / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 12))
        return filler

    def flip(self, machine: str, pattern: str, count: int = 1) -> int:
        """Flip a bit in some files of a machine; returns in how many."""
        files = sorted(path for path in self.machines.folder(machine).glob(pattern) if path.is_file() and path.stat().st_size)
        chosen = self.rng.sample(files, min(count, len(files)))
        for path in chosen:
            with suppress(OSError), path.open("r+b") as file:
                place = self.rng.randrange(path.stat().st_size)
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ 1 << self.rng.randrange(8)]))
        return len(chosen)

    def strangers(self, host: str, port: int, count: int, said: bytes = b"") -> list[socket.socket]:
        """Connect so often to a port, and say something or nothing."""
        made: list[socket.socket] = []
        until = time.monotonic() + 5.0  # a port may be blocked
        while len(made) < count and time.monotonic() < until:
            with suppress(OSError):
                stranger = socket.create_connection((host, port), 0.5)
                made.append(stranger)
                stranger.sendall(said)
        return made

    def ports(self) -> list[tuple[str, int]]:
        """Return the hosts and ports where anybody listens, as far as they are known."""
        planes = re.findall(r"data plane at tcp://[^ ,]*:(\d+), incarnation", self.machines.log(COORDINATOR).read_text(errors="replace"))
        mine = [(self.machines.host(COORDINATOR), port) for port in (self.machines.port, *map(int, planes[-1:]))]
        return [*mine, *((self.machines.host(node.name), int(node.address.rpartition(":")[2])) for node in self.nodes())]

    # --- quiet points ---------------------------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """Note memory, descriptors and bytes on disk of every machine."""
        for machine in (COORDINATOR, *self.agents):
            rss = descriptors = 0
            tree = self.machines.tree(machine)
            for process in tree:
                with suppress(Exception):  # psutil's, when it has ended meanwhile
                    rss += process.memory_info().rss
                    descriptors += process.num_fds()
            disk = sum(path.stat().st_size for path in self.machines.folder(machine).rglob("*") if path.is_file())
            self.history.note("measured", machine=machine, rss=rss, descriptors=descriptors, disk=disk, processes=len(tree))

    def watch_workers(self, stopping: threading.Event) -> None:
        """Note what the coordinator says of workers that ended, until told to stop."""
        log, read = self.machines.log(COORDINATOR), 0
        while not stopping.wait(0.2):
            with log.open("rb") as file:
                file.seek(read)
                text = file.read()
            whole = text.rfind(b"\n") + 1
            read += whole
            for line in text[:whole].decode(errors="replace").splitlines():
                if "the worker of agent" in line:
                    self.history.note("worker ended", text=line)


@contextmanager
def disks(home: Path, machines: Sequence[str]) -> Iterator[None]:
    """Give every machine a small file system of its own (root)."""
    with ExitStack() as stack:
        for machine in machines:
            folder = home / machine
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
            stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=False)
        yield


class Victims:
    """Clients in a process that may be killed at any time; another one follows."""

    def __init__(self, machines: Machines, home: Path, history: History, lines: Sequence[str]) -> None:
        """Start none yet; each obeys these lines."""
        self._machines = machines
        self._home = home
        self._history = history
        self._lines = lines
        self._stack = ExitStack()
        self._count = 0
        self._pid = 0

    def start(self) -> None:
        """Start the next one."""
        self._count += 1
        token = self._home / f"{CLIENTS}.token"
        clients = self._stack.enter_context(clients_of(self._machines, self._home, f"victims{self._count}", token))
        self._pid = clients.pid
        for line in self._lines:
            clients.tell(line)

    def replace(self) -> None:
        """Kill the one that runs, and start another."""
        import os
        import signal

        self._history.note("client killed", pid=self._pid)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._stack.close()
        self.start()

    def close(self) -> None:
        """End the one that runs."""
        self._stack.close()


def wait(done: Callable[[], bool], seconds: float) -> float | None:
    """Wait for something; returns how long it took, None if it was too long."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.1)
    return time.monotonic() - began

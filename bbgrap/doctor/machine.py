"""Finding out how this machine is, and how much of it is left: for agents, the coordinator, and whoever runs `bbgrap doctor`.

Laws: it takes `SAMPLE_S`, and hardly any processor time; what a system does not tell is 0 or empty; nothing is raised.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

from bbgrap.doctor.cgroups import free_memory_bytes, memory_bytes, processors, throttled_part
from bbgrap.protocol.inspection import MachineFacts

SAMPLE_S = 0.25
"""How long is looked who uses the processors."""

_MAX_TEXT = 500


def read_machine(folder: Path, host: str, root: Path = Path("/")) -> MachineFacts:
    """Return how this machine is; `folder` is where this process keeps things, `host` what others reach it by, `root` for tests."""
    before, own_before = psutil.cpu_times(), _own_seconds()
    began = time.monotonic()
    time.sleep(SAMPLE_S)
    after, own = psutil.cpu_times(), _own_seconds() - own_before
    spent = {name: max(0.0, getattr(after, name) - getattr(before, name)) for name in after._fields if not name.startswith("guest")}
    total = sum(spent.values()) or 1.0
    cores = psutil.cpu_count() or 1
    stolen = spent.get("steal", 0.0) / total
    idle = (spent.get("idle", 0.0) + spent.get("iowait", 0.0)) / total
    installed = int(psutil.virtual_memory().total)
    return MachineFacts(
        cores=cores,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        quota_cores=processors(root) or 0.0,
        throttled=throttled_part(root),
        stolen=stolen,
        busy_cores=max(0.0, 1.0 - idle - stolen) * cores,
        own_cores=max(0.0, own) / (time.monotonic() - began),
        memory_bytes=min(installed, memory_bytes(root) or installed),
        free_memory_bytes=free_memory_bytes(root),
        folder=str(folder)[:_MAX_TEXT],
        free_disk_bytes=free_bytes(folder),
        card_bits_per_s=card_speed(host),
        clock_s=time.time(),  # the last: it is compared with when this arrives
    )


def _own_seconds() -> float:
    """Return the processor time of this process and its living children, in seconds."""
    found = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            found += times.user + times.system
    return found


def free_bytes(folder: Path) -> int:
    """Return what fits on the disk of a folder, or of what will be its parent; 0 if that cannot be told."""
    try:
        there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
        return int(psutil.disk_usage(str(there)).free)
    except OSError:
        return 0


def card_speed(host: str) -> float:
    """Return the bits per second that the network card with an address of this machine says it does; 0 where none says so.

    Virtual cards claim what they like, so only those with hardware behind them are asked on Linux.
    """
    try:
        address = socket.getaddrinfo(host.strip("[]"), None)[0][4][0]
        cards = psutil.net_if_addrs()
        name = next((name for name, has in cards.items() if any(a.address.partition("%")[0] == address for a in has)), "")
        speed = psutil.net_if_stats()[name].speed if name else 0
    except (OSError, UnicodeError, KeyError, psutil.Error):
        return 0.0
    devices = Path("/sys/class/net")
    if not re.fullmatch(r"[\w.@:-]+", name) or (devices.is_dir() and not (devices / name / "device").exists()):
        return 0.0
    return max(0, speed) * 1e6

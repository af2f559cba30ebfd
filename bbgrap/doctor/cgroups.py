"""What this process's control groups leave it: memory and processor time, in both versions of Linux' control groups.

    /proc/self/cgroup    4:memory:/a/b   or   0::/a/b
    the limit            the least of /a/b, /a and /

In a container that has a name space of its own, the path may be that of the host, which is not there: its root is the group then.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import psutil

_ROOT = Path("/")


def folders_of(controller: str, root: Path = _ROOT) -> list[Path]:
    """Return the folders of this process's group and those above it, that has this controller; the own one first."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            # The mount is named after one of the controllers, or all of those that share it.
            mounts = [groups / controller, groups / controllers]
        elif number == "0" and not controllers:
            mounts = [groups, groups / "unified"]
        else:
            continue
        relative = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            inner = [mount / each for each in (relative, *relative.parents) if ".." not in each.parts]
            found += [folder for folder in dict.fromkeys((*inner, mount)) if folder.is_dir()]
    return found


def memory_bytes(root: Path = _ROOT) -> int | None:
    """Return the bytes this process's groups may use; None without a limit."""
    return min((limit for limit, _ in _memory_limits(root)), default=None)


def memory_group(root: Path = _ROOT) -> str:
    """Return what tells the group that limits this process's memory from others of this machine; "" if it is the machine's."""
    limit, folder = min(_memory_limits(root), default=(0, root))
    if not limit or limit >= psutil.virtual_memory().total:
        return ""
    found = folder.stat()  # in name spaces of their own, groups have equal paths
    return f"{found.st_dev}:{found.st_ino}"


def _memory_limits(root: Path) -> list[tuple[int, Path]]:
    files = ("memory.max", "memory.limit_in_bytes")
    limits = [(_number(folder / file), folder) for folder in folders_of("memory", root) for file in files]
    return [(limit, folder) for limit, folder in limits if limit is not None]


def room_bytes(root: Path = _ROOT, most: int = 1 << 62) -> int:
    """Return what this process's groups may still take, `most` without a limit; caches of files that can be dropped count as free."""
    room = [most]
    for folder in folders_of("memory", root):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            if (bytes_ := _number(folder / limit)) is not None:
                stats = _stats(folder / "memory.stat")
                cached = sum(stats.get(name, stats.get(f"total_{name}", 0)) for name in ("inactive_file", "active_file"))
                room.append(bytes_ - (_number(folder / used) or 0) + cached)
    return max(0, min(room))


def free_memory_bytes(root: Path = _ROOT) -> int:
    """Return the bytes of memory that are left: the machine's, or those of a group that has a limit if they are less."""
    memory = psutil.virtual_memory()
    return max(0, min(int(memory.available), room_bytes(root, int(memory.total))))


def throttled_part(root: Path = _ROOT) -> float:
    """Return the part of its scheduling periods, 0 to 1, in which a group of this process was stopped for its quota."""
    found = [0.0]
    for folder in folders_of("cpu", root):
        stats = _stats(folder / "cpu.stat")
        found.append(stats.get("nr_throttled", 0) / max(1, stats.get("nr_periods", 0)))
    return min(1.0, max(found))


def processors(root: Path = _ROOT) -> float | None:
    """Return how many cores' time this process's groups may use; None without a limit."""
    quotas = [quota for folder in folders_of("cpu", root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota, period = str(_number(folder / "cpu.cfs_quota_us")), str(_number(folder / "cpu.cfs_period_us"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) > 0 else None


def _stats(file: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number a line; none if it is not there."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def _number(file: Path) -> int | None:
    """Return the number in a file; None if there is none, or a word like `max`, or -1."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

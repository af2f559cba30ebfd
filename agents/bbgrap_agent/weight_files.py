"""Files of the weights cache: whether one holds what its name says, and which of them have ended a worker.

A worker maps these files, so a page that cannot be read ends it by SIGBUS: of a file that was cut short, or on a disk that is broken.
Laws: a check reads and never maps, so it cannot end who checks; a file that has ended a worker is removed, so it ends no second one.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from bbgrap.errors import ExecutionError
from bbgrap.graph.mapped_files import FilePart, read_head
from bbgrap.graph.weights import begin_digest
from bbgrap.protocol.messages import Deploy

_READ_BYTES = 1 << 20
"""At a time. Chosen: it stays in a processor's cache."""
_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the system says where a process has, or it itself has, no descriptor or no memory left."""
_NAMED = 3
"""So many files a reason names."""


def weight_file(directory: Path, digest: str) -> Path:
    """Return where a weight is kept; the protocol's schema lets nothing but digests come here, so it is in the directory."""
    return directory / f"{digest}.npy"


def fault_of(path: Path, *, content: bool = True) -> str:
    """Return why a file does not hold the weight that its name is the digest of, empty if it does; without `content` only sizes count.

    Raises:
        ExecutionError: if this process can open no file, or has no memory to read it, whatever it holds.
    """
    try:
        with path.open("rb", buffering=0) as stream:
            head, size = read_head(stream), path.stat().st_size
            if size != head.end:
                return f"it has {size} bytes, expected {head.end}"
            if not content:
                return ""
            hasher, piece = begin_digest(head.dtype, head.shape), memoryview(bytearray(_READ_BYTES))
            while count := stream.readinto(piece):
                hasher.update(piece[:count])
            return "" if hasher.hexdigest() == path.stem and not head.is_fortran else "its content has another digest"
    except FileNotFoundError:
        return "it is gone"
    except OSError as error:
        check_limits(error)
        return f"it cannot be read: {error.strerror or error}"
    except MemoryError as error:
        raise ExecutionError("no file of weights can be read: no memory is left; is it limited (ulimit -v)?") from error
    except Exception:  # noqa: BLE001,RUF100 - whatever numpy makes of a head of garbage
        return "it is no array"


def part_of(path: Path) -> FilePart | None:
    """Return where a file has the elements of its array; None if it is gone, or has not all of them."""
    try:
        with path.open("rb", buffering=0) as stream:
            head, size = read_head(stream), path.stat().st_size
    except Exception:  # noqa: BLE001,RUF100 - whatever numpy makes of a head of garbage
        return None
    return FilePart(path.name, head.begin, head.end - head.begin) if size == head.end and not head.is_fortran else None


def check_limits(error: OSError) -> None:
    """Do nothing, unless an error says of this process, and not of a file, why it could not be opened or mapped.

    Raises:
        ExecutionError: then.
    """
    if error.errno in _LIMITS:
        raise ExecutionError(
            f"no file of weights can be opened: {error.strerror}; let the agent have more descriptors (ulimit -n, LimitNOFILE), or "
            "more mappings (vm.max_map_count): a model takes one for each of its large weights"
        ) from error


class DeployedFiles:
    """The files that the deployments of one worker may have mapped, as its nanny knows them.

    Invariants: noted by one thread; looked at by another, after the worker's end. `_inodes` are those of each deployment, by its epoch.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._inodes: dict[int, dict[Path, int]] = {}

    def note(self, deploy: Deploy) -> None:
        """Note the files of a deployment, before its worker loads it."""
        inodes = self._inodes[deploy.epoch] = dict[Path, int]()
        for digest in deploy.weight_types:
            path = weight_file(self._directory, digest)
            # What is not on disk is in the worker's memory.
            with suppress(OSError):
                inodes[path] = path.stat().st_ino

    def forget(self, epoch: int) -> None:
        """A deployment is released: its files may go, which is no damage."""
        self._inodes.pop(epoch, None)

    def drop_damaged(self) -> str:
        """Remove those that are damaged; return in words which they are, empty if none is.

        Contents are looked at only if all sizes are right, for that takes a second per gigabyte.
        """
        known = {path: inode for inodes in tuple(self._inodes.values()) for path, inode in inodes.items()}
        for content in (False, True):
            faults = {path.name: fault for path, inode in known.items() if (fault := _dropped_for(path, inode, content))}
            if faults:
                named = [f"'{name}': {fault}" for name, fault in list(faults.items())[:_NAMED]]
                more = len(faults) - len(named)
                return "; ".join(named) + (f"; and {more} more" if more else "")
        return ""


def _dropped_for(path: Path, inode: int, content: bool) -> str:
    """Return what is wrong with a file, and remove it then; empty if nothing is.

    One that is gone or another one by now counts: another agent that shares the folder has found it damaged first.
    """
    try:
        fault = fault_of(path, content=content)
    except ExecutionError:
        return ""
    with suppress(OSError):
        if fault:
            path.unlink(missing_ok=True)
        elif path.stat().st_ino != inode:
            return "it was written anew"
    return fault

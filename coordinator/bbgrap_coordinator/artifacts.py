"""What planning has made, on disk: a folder per job, written by a planner's process, read and mapped by the coordinator.

    STATE/plans/JOB/variants    names, reports, schedules and segments (the protocol's schema), and where each weight lies
    STATE/plans/JOB/weights     the weights, each once, aligned; mapped, never read as a whole
    STATE/models/DIGEST         the model's own files, in which those of a standby lie, at any byte
    STATE/plans/JOB/inherited   the weights of the plan that it was scaled from: a second name of that file
    STATE/plans/JOB/tiles       how the first variants are cut, for plans that are scaled from them (`plan_tiles`)

Laws: all files are on the disk when `sync_artifacts` returns; what `read_artifacts` returns keeps every law of a deployment, whatever
the files hold, for who wrote them has read a stranger's model.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeVar, cast

import msgpack
import numpy as np

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel, WeightRef
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.errors import BbgrapError, PlanError
from bbgrap.graph.mapped_files import map_file
from bbgrap.graph.types import STORABLE, Array, DType, TensorType
from bbgrap.protocol.checks import check_deploy
from bbgrap.protocol.limits import MAX_REPORT_BYTES, Digest, Length, Name
from bbgrap.protocol.messages import Deploy, Peer
from bbgrap.protocol.schema import SchemaError, build, plain_form
from bbgrap.runtime.joined_requests import JoinedInput
from bbgrap.runtime.schedule import Schedule

ALIGNMENT = 64
"""Where weights begin in their file, in bytes: no less than any of their elements needs."""

MAX_VARIANTS_BYTES = 512 << 20
"""Of the file without weights. Chosen: above eight reports and as many schedules with their segments as large as a message may be."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a disk says that is full; there may be room soon."""

_VARIANTS, _WEIGHTS, _INHERITED, TILES, _MODELS = "variants", "weights", "inherited", "tiles", "models"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place:
    """A weight in a file: its type, and at which byte it begins."""

    type: TensorType
    offset: int


@dataclass(frozen=True, slots=True)
class _Variant:
    name: Name
    report: Annotated[str, Length(MAX_REPORT_BYTES)]
    devices: tuple[DeviceArtifacts, ...]
    host: Schedule
    further: Schedule | None = None
    joinings: Mapping[Name, JoinedInput] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Made:
    variants: tuple[_Variant, ...]
    places: Mapping[Digest, _Place]
    inherited: Mapping[Digest, _Place]
    held: Mapping[Digest, Mapping[Digest, _Place]]
    """Those in the model's files, by the digests of these."""


def write_artifacts(
    folder: Path, variants: Sequence[PlannedVariant], base: Path | None = None, files: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write what was made into a folder that is there and empty; `sync_artifacts` brings it to the disk.

    Weights that the folder `base` has as well are not written again, nor are those that lie in `files` of the model, digests by name.

    Raises:
        OSError: if it cannot be written.
    """
    places: dict[str, _Place] = {}
    held: dict[str, dict[str, _Place]] = {}
    there = {} if base is None else _places(base)
    if base is not None and there:
        try:
            os.link(base / _WEIGHTS, folder / _INHERITED)
        except OSError:
            there = {}  # no links here: they are written again
    with (folder / _WEIGHTS).open("xb") as stream:
        for variant in variants:
            for digest, array in variant.artifacts.weights.items():
                kind, place = TensorType(DType.of(array.dtype), array.shape), variant.held.get(digest)
                if place is not None and place.file in files:
                    held.setdefault(files[place.file], {})[digest] = _Place(kind, place.offset)
                elif digest not in places and digest not in there:
                    stream.write(bytes(-stream.tell() % ALIGNMENT))
                    places[digest] = _Place(kind, stream.tell())
                    stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    made = ((v, v.artifacts) for v in variants)
    forms = tuple(_Variant(v.name, json.dumps(v.report), a.devices, a.host, a.further, a.joinings) for v, a in made)
    with (folder / _VARIANTS).open("xb") as stream:
        stream.write(packed(_Made(forms, places, there, held)))


def _places(base: Path) -> Mapping[str, _Place]:
    """Return where the weights of a folder lie in its file; none if it cannot be read."""
    try:
        return read_form(_Made, base / _VARIANTS).places
    except (SchemaError, OSError, ValueError, TypeError):
        return {}


def sync_artifacts(folder: Path) -> None:
    """Bring what `write_artifacts` has written to the disk.

    Raises:
        OSError: if it is not there, or the disk does not take it.
    """
    for name in (_VARIANTS, _WEIGHTS, _INHERITED, TILES):
        with suppress(FileNotFoundError), _opened(folder / name) as stream:
            os.fsync(stream.fileno())
    sync_folder(folder)
    sync_folder(folder.parent)


def read_artifacts(folder: Path, expected: str = "") -> tuple[PlannedVariant, ...]:
    """Return the variants that a folder holds, their weights mapped; `expected` is the digest that it must have, if it is known.

    The weights are not read, and so not checked: agents refuse what has another digest than it is asked by.

    Raises:
        PlanError: if it does not hold what `write_artifacts` writes.
    """
    try:
        content = _content(folder / _VARIANTS)
        digest = hashlib.sha256(content).hexdigest()
        if expected not in {"", digest}:
            raise SchemaError(f"its digest is {digest[:12]}, expected {expected[:12]}")
        made = unpacked(_Made, content)
        if not made.variants:
            raise SchemaError("there are no variants")
        arrays = _mapped(folder / _WEIGHTS, made.places) | (_mapped(folder / _INHERITED, made.inherited) if made.inherited else {})
        for file, places in made.held.items():
            arrays |= _mapped(folder.parent.parent / _MODELS / file, places, alignment=1)
        return tuple(_variant(form, arrays) for form in made.variants)
    except (SchemaError, BbgrapError, OSError, ValueError, TypeError, LookupError, RecursionError, OverflowError, MemoryError) as error:
        raise PlanError(f"what planning made in '{folder}' cannot be used: {type(error).__name__}: {str(error)[:500]}") from None


def digest_on_disk(folder: Path) -> str | None:
    """Return the digest by which a folder is known; None if it is not there."""
    try:
        with _opened(folder / _VARIANTS) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


def read_form(kind: type[T], path: Path) -> T:
    """Return what a file of a job's folder holds, in the protocol's schema.

    Raises:
        SchemaError, OSError, ValueError, TypeError, LookupError, RecursionError: if it holds something else.
    """
    return unpacked(kind, _content(path))


def packed(value: object) -> bytes:
    """Return a value as it lies on the disk, in the protocol's schema."""
    return cast("bytes", msgpack.packb(value, default=plain_form))


def unpacked(kind: type[T], content: bytes) -> T:
    """Undo `packed`; raises as `read_form`, if it is something else."""
    return cast("T", build(kind, msgpack.unpackb(content, raw=False, use_list=False, strict_map_key=True)))


def _content(path: Path) -> bytes:
    with _opened(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MAX_VARIANTS_BYTES:
            raise SchemaError(f"it has {size} bytes, expected at most {MAX_VARIANTS_BYTES}")
        return stream.read(size)


def _opened(path: Path) -> io.BufferedReader:
    """Open a file that a planner has left: whatever leads elsewhere, or never ends, is refused.

    Raises:
        OSError: if it is not there, or no plain file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, f"'{path.name}' is no plain file")
    return open(handle, "rb")  # noqa: PTH123 - a descriptor, which the caller closes


def _mapped(path: Path, places: Mapping[str, _Place], alignment: int = ALIGNMENT) -> dict[str, Array]:
    with _opened(path) as stream:
        mapped = map_file(stream)
    size = mapped.nbytes
    arrays = {}
    for digest, place in places.items():
        kind = place.type
        if kind.dtype not in STORABLE or kind.dtype is DType.STRING or kind.shape is None:
            raise SchemaError(f"weight {digest[:12]}: a {kind} cannot be mapped")
        if place.offset % alignment or not 0 <= place.offset <= size - kind.nbytes:
            raise SchemaError(f"weight {digest[:12]}: {kind.nbytes} bytes at {place.offset} do not lie in a file of {size}")
        array: Array = np.ndarray(kind.shape, kind.dtype.numpy, mapped if kind.nbytes else b"", place.offset if kind.nbytes else 0)
        array.flags.writeable = False
        arrays[digest] = array
    return arrays


def _variant(form: _Variant, arrays: Mapping[str, Array]) -> PlannedVariant:
    report = json.loads(form.report)
    if not isinstance(report, dict):
        raise SchemaError("a report is no object")
    host = len(form.devices)
    if (form.host.device, form.host.host) != (host, host):
        raise SchemaError(f"variant '{form.name}': the host's schedule is that of device {form.host.device}, expected {host}")
    if form.further is not None and (form.further.device, form.further.host) != (host, host):
        raise SchemaError(f"variant '{form.name}': the host's further schedule is that of device {form.further.device}, expected {host}")
    if any((device.further is None) != (form.further is None) for device in form.devices):
        raise SchemaError(f"variant '{form.name}': some of its devices have a program for further requests, others have none")
    used: dict[str, Array] = {}
    for number, device in enumerate(form.devices):
        _check_device(number, host, device)
        for segment in device.segments:
            used |= {ref.digest: _weight(segment, ref, arrays) for ref in segment.weights.values()}
    return PlannedVariant(form.name, Artifacts(form.devices, form.host, used, form.further, form.joinings), report)


def _check_device(number: int, host: int, device: DeviceArtifacts) -> None:
    peers = tuple(Peer(peer, "", "") for peer in range(host + 1))
    faults = (
        check_deploy(Deploy(0, peers, device.schedule, device.segments, device.further))
        if device.schedule.host == host
        else ("another host",)
    )
    if faults or device.schedule.device != number:
        raise SchemaError(f"device {number}: {faults[0] if faults else f'its schedule is that of device {device.schedule.device}'}")


def _weight(segment: SegmentModel, ref: WeightRef, arrays: Mapping[str, Array]) -> Array:
    array = arrays.get(ref.digest)
    if array is None or TensorType(DType.of(array.dtype), array.shape) != ref.type:
        raise SchemaError(f"segment '{segment.name}': weight {ref.digest[:12]} of type {ref.type} is not there")
    return array


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ArtifactFolders:
    """The folders of all jobs.

    Invariants: a folder is named by the number of its job.
    """

    def __init__(self, directory: Path) -> None:
        """Use a directory, which is made if it is not there."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, job: int) -> Path:
        """Return where a job's folder is, or would be."""
        return self.directory / str(job)

    def make(self, job: int) -> Path:
        """Return a new empty folder for a job.

        Raises:
            OSError: if it cannot be made.
        """
        self.remove(job)
        self.path(job).mkdir(parents=True)
        return self.path(job)

    def remove(self, job: int) -> None:
        """Remove a job's folder, if it is there; what is mapped stays readable."""
        shutil.rmtree(self.path(job), ignore_errors=True)

    def nbytes(self, job: int) -> int:
        """Return the bytes that a job's files take; 0 if there are none."""
        return sum(size_of(self.path(job) / name) or 0 for name in (_VARIANTS, _WEIGHTS, TILES))

    def keep_only(self, jobs: set[int]) -> None:
        """Remove whatever belongs to no job of these."""
        names = {str(job) for job in jobs}
        for path in self.directory.iterdir():
            if path.name not in names:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def size_of(path: Path) -> int | None:
    """Return the bytes of a file; None if there is none."""
    try:
        facts = path.lstat()
    except OSError:
        return None
    return facts.st_size if stat.S_ISREG(facts.st_mode) else None

"""Files as arrays that are mapped, not read: the pages are the system's to take back, and a mapping keeps no descriptor open.

Python's `mmap` keeps one for each mapping, and a node has thousands of weights. Laws: a mapping lives as long as an array that shows it,
also when the file is removed meanwhile; nobody writes to it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np

from bbgrap.graph.types import Array

_VERSION = (1, 0)
"""Of numpy's file format: the one it writes for numbers."""
_FAILED = ctypes.c_void_p(-1).value


def _system_calls() -> tuple[Any, Any] | None:
    """Return the system's `mmap` and `munmap`, where it has them."""
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library.mmap, library.munmap


_CALLS = _system_calls()


class _Mapping:
    """Pages of a file, as arrays take them; they go with the last array that shows them."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes of a file, which is named without its folder: so many, from `begin` on."""

    file: str
    begin: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Head:
    """What a file of numpy's says of its array, whose elements begin at `begin`, in bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    begin: int

    @property
    def end(self) -> int:
        """Where its elements end, in bytes."""
        return self.begin + self.dtype.itemsize * prod(self.shape)


def read_head(file: IO[bytes]) -> Head:
    """Return what `numpy.save` has written before an array of numbers.

    Raises:
        ValueError, SyntaxError: if it is no such file; of garbage numpy raises others, too.
    """
    if np.lib.format.read_magic(file) != _VERSION:
        raise ValueError("it is of another version of numpy's format, expected 1.0")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    return Head(shape, dtype, is_fortran, file.tell())


def map_file(file: IO[bytes], begin: int = 0, nbytes: int | None = None) -> Array:
    """Return bytes of an open file, from `begin` on, all unless told how many: an array `[bytes]`, read-only.

    Raises:
        OSError: if it cannot be mapped.
        ValueError: if it has fewer.
    """
    handle = file.fileno()
    size = os.fstat(handle).st_size
    end = size if nbytes is None else begin + nbytes
    if not 0 <= begin <= end <= size:
        raise ValueError(f"it has {size} bytes, expected {end} after {begin}")
    if begin == end:
        return np.empty(0, np.uint8)
    page = begin - begin % mmap.ALLOCATIONGRANULARITY
    return _map_pages(handle, page, end - page)[begin - page :]


def _map_pages(handle: int, begin: int, nbytes: int) -> Array:
    """Return bytes of a file from the beginning of a page on; they are there."""
    if _CALLS is None:
        return np.frombuffer(mmap.mmap(handle, nbytes, access=mmap.ACCESS_READ, offset=begin), np.uint8)
    map_pages, unmap_pages = _CALLS
    address = map_pages(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, handle, begin)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    mapping = _Mapping(address, nbytes)
    # Not at the end of the process: other threads may be reading.
    weakref.finalize(mapping, unmap_pages, address, nbytes).atexit = False
    return np.asarray(mapping)


def map_array(file: IO[bytes]) -> Array:
    """Return the array of numbers that `numpy.save` has written to a file, read-only.

    Raises:
        OSError: if it cannot be read, or mapped.
        ValueError, SyntaxError: if it is no such file, or shorter than it says; of garbage numpy raises others, too.
    """
    head = read_head(file)
    content = map_file(file)
    if head.dtype.hasobject or content.nbytes < head.end:
        raise ValueError(f"it has {content.nbytes} bytes, expected {head.end} of {head.dtype}")
    return np.ndarray(head.shape, head.dtype, content, head.begin, order="F" if head.is_fortran else "C")

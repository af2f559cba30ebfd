"""Files as arrays that are mapped."""

import gc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.graph import mapped_files
from bbgrap.graph.mapped_files import map_array, map_file


def map_path(path):
    with path.open("rb") as file:
        return map_file(file)


def map_saved(path):
    with path.open("rb") as file:
        return map_array(file)


def mappings(path):
    return Path("/proc/self/maps").read_text().count(str(path))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, np.uint8, "V2"])
@pytest.mark.parametrize("shape", [(3, 5), (70_000,), ()])
def test_an_array_is_what_was_saved(tmp_path, dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 97).reshape(shape).astype("V2" if dtype == "V2" else dtype)
    for saved in (array, np.asfortranarray(array)):
        np.save(tmp_path / "a.npy", saved)
        mapped = map_saved(tmp_path / "a.npy")
        assert (mapped.dtype, mapped.shape, mapped.tobytes()) == (saved.dtype, saved.shape, saved.tobytes())
        assert not mapped.flags.writeable


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at mappings as Linux shows them")
def test_a_mapping_takes_no_descriptor_and_goes_with_the_last_array(tmp_path):
    path = tmp_path / "weight"
    path.write_bytes(bytes(range(256)) * 4096)
    before = len(list(Path("/proc/self/fd").iterdir()))
    arrays = [map_path(path)[n:] for n in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert mappings(path) == 20
    part = arrays[7].view(np.int8)[3:5]
    path.unlink()
    del arrays
    gc.collect()
    assert mappings(path) == 1
    assert part.tolist() == [10, 11]
    del part
    gc.collect()
    assert mappings(path) == 0


@pytest.mark.parametrize("calls", ["of the system", "of Python"])
@given(begin=st.integers(0, 10_001), nbytes=st.integers(0, 10_001))
def test_a_part_of_a_file_is_where_it_lies(tmp_path_factory, calls, begin, nbytes):
    path, content = tmp_path_factory.mktemp("parts") / "weights", np.random.default_rng(0).bytes(10_000)
    path.write_bytes(content)
    with path.open("rb") as file, pytest.MonkeyPatch.context() as patch:
        if calls == "of Python":
            patch.setattr(mapped_files, "_CALLS", None)
        if begin + nbytes <= len(content):
            assert map_file(file, begin, nbytes).tobytes() == content[begin : begin + nbytes]
        else:
            with pytest.raises(ValueError, match=r"it has 10000 bytes"):
                map_file(file, begin, nbytes)


def test_what_has_no_bytes_is_no_mapping(tmp_path):
    (tmp_path / "empty").touch()
    assert map_path(tmp_path / "empty").shape == (0,)


def test_what_is_no_array_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    for content in (b"", b"no array", np.lib.format.magic(2, 0)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"numpy's format|magic"):
            map_saved(path)
    np.save(path, np.zeros(100, np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"has 527 bytes, expected 528"):
        map_saved(path)
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="of object"):
        map_saved(path)


def test_a_system_without_these_calls_maps_as_python_does(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_files, "_CALLS", None)
    (tmp_path / "weight").write_bytes(b"abc")
    assert map_path(tmp_path / "weight").tobytes() == b"abc"
    assert not map_path(tmp_path / "weight").flags.writeable

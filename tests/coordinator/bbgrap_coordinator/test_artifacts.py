"""What planning has made comes back from the disk as it was, or not at all."""

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import replace

import msgpack
import numpy as np
import onnx
import pytest
from bbgrap_coordinator.artifacts import (
    ALIGNMENT,
    ArtifactFolders,
    digest_on_disk,
    read_artifacts,
    write_artifacts,
)
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from bbgrap.engine.standby import standby_of
from bbgrap.errors import PlanError
from bbgrap.graph.onnx_external import detach
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.tensors import encode_array
from bbgrap.runtime.joined_requests import JoinedInput
from tests.coordinator.made import ARRAYS, DEVICE, HOST, variant
from tests.onnx_models import model_of
from tests.sequence_models import decoder


@pytest.fixture
def folder(tmp_path):
    return ArtifactFolders(tmp_path / "plans").make(1 << 40)


def test_all_comes_back(folder):
    made = (variant(ARRAYS), variant(ARRAYS[:3], "two"), variant([], "none"))
    write_artifacts(folder, made)
    found = read_artifacts(folder, digest_on_disk(folder))
    assert found == made  # arrays are not compared by it
    for ours, theirs in zip(made, found, strict=True):
        assert theirs.artifacts.weights.keys() == ours.artifacts.weights.keys()
        for digest, array in ours.artifacts.weights.items():
            back = theirs.artifacts.weights[digest]
            assert (back.dtype, back.shape, back.flags.aligned, back.flags.writeable) == (array.dtype, array.shape, True, False)
            assert digest_of(back) == digest


def test_programs_of_sequences_come_back_and_how_requests_are_joined(folder, tmp_path):
    (tmp_path / "decoder.onnx").write_bytes(decoder())
    made = standby_of(tmp_path / "decoder.onnx", [(f"past_key_values.0.{kind}", f"present.0.{kind}") for kind in ("key", "value")])
    write_artifacts(folder, [made])
    (found,) = read_artifacts(folder)
    assert found.artifacts.joinings == {"input_ids": JoinedInput("row", 1)}
    assert (found.artifacts.further, found.artifacts.reading) == (made.artifacts.further, made.artifacts.reading)
    assert found.artifacts.reading is not None


def test_equal_weights_of_variants_are_written_once(folder):
    large = np.arange(100_000, dtype=np.float32)
    write_artifacts(folder, [variant([large]), variant([large.copy()], "two")])
    assert (folder / "weights").stat().st_size < large.nbytes + ALIGNMENT


def test_weights_outlive_their_file(folder):
    write_artifacts(folder, [variant(ARRAYS)])
    (found,) = read_artifacts(folder)
    ArtifactFolders(folder.parent).remove(1 << 40)
    assert not folder.exists()
    assert all(digest_of(array) == digest for digest, array in found.artifacts.weights.items())


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_changed_byte_of_the_rest_is_found(tmp_path_factory, place, bit):
    folder = tmp_path_factory.mktemp("made")
    write_artifacts(folder, [variant(ARRAYS)])
    digest = digest_on_disk(folder)
    content = bytearray((folder / "variants").read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    (folder / "variants").write_bytes(content)
    with pytest.raises(PlanError, match="digest"):
        read_artifacts(folder, digest)
    with suppress(PlanError):
        read_artifacts(folder)  # as a planner's process might have written it: used or refused, nothing else


@given(content=st.binary(max_size=64))
def test_anything_else_is_refused(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("made")
    (folder / "variants").write_bytes(content)
    (folder / "weights").write_bytes(b"")
    with pytest.raises(PlanError, match="cannot be used"):
        read_artifacts(folder)


@pytest.mark.parametrize("missing", ["variants", "weights"])
def test_what_is_missing_or_cut_short_is_refused(folder, missing):
    write_artifacts(folder, [variant(ARRAYS)])
    content = (folder / missing).read_bytes()
    (folder / missing).write_bytes(content[:-1])
    with pytest.raises(PlanError):
        read_artifacts(folder)
    (folder / missing).unlink()
    with pytest.raises(PlanError):
        read_artifacts(folder)
    assert (digest_on_disk(folder) is None) == (missing == "variants")


def with_device(made, **changes):
    (device,) = made.artifacts.devices
    return replace(made, artifacts=replace(made.artifacts, devices=(replace(device, **changes),)))


BROKEN = {
    "a segment that is not there": lambda made: with_device(made, segments=()),
    "another device": lambda made: with_device(made, schedule=HOST),
    "a host with another number": lambda made: replace(made, artifacts=replace(made.artifacts, host=DEVICE)),
    "a buffer read before it is filled": lambda made: with_device(made, schedule=replace(DEVICE, steps=DEVICE.steps[1:])),
    "a weight that is not there": lambda made: replace(made, artifacts=replace(made.artifacts, weights={})),
    "a report that is no object": lambda made: replace(made, report=[1]),
    "a name of two kilobytes": lambda made: replace(made, name="n" * 2048),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_a_law_is_refused(folder, what):
    write_artifacts(folder, [BROKEN[what](variant(ARRAYS))])
    with pytest.raises(PlanError, match="cannot be used"):
        read_artifacts(folder)


def test_weights_of_a_plan_that_it_was_scaled_from_are_not_written_again(folder):
    base = folder.parent / "base"
    base.mkdir()
    write_artifacts(base, [variant(ARRAYS[:1])])
    write_artifacts(folder, [variant(ARRAYS[:2])], base)
    assert (folder / "weights").stat().st_size < sum(array.nbytes for array in ARRAYS[:2])
    assert (folder / "inherited").samefile(base / "weights")
    (found,) = read_artifacts(folder)
    shutil.rmtree(base)
    for digest, array in variant(ARRAYS[:2]).artifacts.weights.items():
        np.testing.assert_array_equal(found.artifacts.weights[digest], array)


def test_a_file_that_was_cut_off_while_it_was_mapped_is_refused(folder):
    write_artifacts(folder, [variant(ARRAYS)])
    (found,) = read_artifacts(folder)
    with (folder / "weights").open("r+b") as stream:
        stream.truncate(8)
    with pytest.raises(PlanError, match="do not lie in a file of 8"):
        read_artifacts(folder)
    assert found.artifacts.weights


@pytest.mark.parametrize(
    "place",
    [[[1, [3, 4], b""], 1 << 40], [[1, [3, 4], b""], 8], [[8, [3, 4], b""], 0], [[1, None, b""], 0], [[1, [1 << 60, 1 << 60], b""], 0]],
)
def test_weights_beyond_their_file_or_of_no_size_are_refused(folder, place):
    write_artifacts(folder, [variant(ARRAYS[:1])])
    variants, places, inherited, held = msgpack.unpackb((folder / "variants").read_bytes())
    (folder / "variants").write_bytes(msgpack.packb([variants, dict.fromkeys(places, place), inherited, held]))
    with pytest.raises(PlanError, match="SchemaError"):
        read_artifacts(folder)


def model_of_two_files(folder):
    """A model with a weight in its own file, at a byte that no array begins at, and one in a file beside it."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal((600, 600)).astype(np.float32), name) for name in "ab"]
    nodes = [helper.make_node("MatMul", ["x", "a"], ["y"]), helper.make_node("MatMul", ["y", "b"], ["z"])]
    made = model_of(nodes, {"x": [1, 600]}, {"z": [1, 600]})
    made.graph.initializer.extend(weights)
    (folder / "b.bin").write_bytes(b"12345" + weights[1].raw_data)
    detach(made.graph.initializer[1], 600 * 600 * 4, 5, "b.bin")
    onnx.save(made, folder / "model.onnx")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("model.onnx", "b.bin")}


@pytest.fixture
def stored(folder, tmp_path):
    """The digests of a model's files, which are in the store, and its standby."""
    files = model_of_two_files(tmp_path)
    (tmp_path / "models").mkdir()
    for name, digest in files.items():
        (tmp_path / "models" / digest).write_bytes((tmp_path / name).read_bytes())
    made = standby_of(tmp_path / "model.onnx")
    write_artifacts(folder, [made], files=files)
    return files, made


def test_a_standby_leaves_weights_where_its_model_has_them(folder, stored):
    _, made = stored
    assert (folder / "weights").stat().st_size == 0
    (found,) = read_artifacts(folder)
    assert found.artifacts.weights.keys() == made.artifacts.weights.keys()
    for digest, array in found.artifacts.weights.items():
        assert digest_of(array) == digest
        assert bytes(encode_array(array)) == bytes(encode_array(made.artifacts.weights[digest]))


@pytest.mark.parametrize("what", ["gone", "cut short", "a link", "a pipe"])
def test_a_standby_goes_with_the_files_of_its_model(folder, tmp_path, stored, what):
    files, _ = stored
    path = tmp_path / "models" / files["b.bin"]
    match what:
        case "gone":
            path.unlink()
        case "cut short":
            path.write_bytes(path.read_bytes()[:-1])
        case "a link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "a pipe":
            path.unlink()
            os.mkfifo(path)
    with pytest.raises(PlanError, match="cannot be used"):
        read_artifacts(folder)


@pytest.mark.parametrize("changed", [{"file": "../weights"}, {"file": "0" * 63}, {"offset": -1}, {"offset": 1 << 62}, {"offset": True}])
def test_a_standby_reads_no_other_files_and_nothing_beyond_them(folder, stored, changed):
    variants, places, inherited, held = msgpack.unpackb((folder / "variants").read_bytes())
    held = {
        changed.get("file", file): {name: [kind, changed.get("offset", offset)] for name, (kind, offset) in inside.items()}
        for file, inside in held.items()
    }
    (folder / "variants").write_bytes(msgpack.packb([variants, places, inherited, held]))
    with pytest.raises(PlanError, match="SchemaError"):
        read_artifacts(folder)


def test_weights_that_are_not_as_the_file_has_them_are_written(folder, tmp_path):
    """Subnormal numbers, which are flushed to 0."""
    files = model_of_two_files(tmp_path)
    content = bytearray((tmp_path / "b.bin").read_bytes())
    content[5:9] = np.float32(1e-40).tobytes()
    (tmp_path / "b.bin").write_bytes(content)
    made = standby_of(tmp_path / "model.onnx")
    write_artifacts(folder, [made], files=files)
    assert 600 * 600 * 4 <= (folder / "weights").stat().st_size < 600 * 600 * 4 + ALIGNMENT


def test_folders_of_nobody_are_removed(tmp_path):
    folders = ArtifactFolders(tmp_path / "plans")
    for job in (1, 2):
        write_artifacts(folders.make(job), [variant(ARRAYS)])
    (tmp_path / "plans" / "stray").write_text("what is this")
    assert folders.nbytes(1) > 0
    folders.keep_only({2})
    assert [path.name for path in folders.directory.iterdir()] == ["2"]
    assert folders.nbytes(1) == 0

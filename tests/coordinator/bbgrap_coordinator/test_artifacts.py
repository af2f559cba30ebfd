"""What planning has made comes back from the disk as it was, or not at all."""

import shutil
from contextlib import suppress
from dataclasses import replace

import msgpack
import numpy as np
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

from bbgrap.engine.standby import standby_of
from bbgrap.errors import PlanError
from bbgrap.graph.weights import digest_of
from bbgrap.runtime.joined_requests import JoinedInput
from tests.coordinator.made import ARRAYS, DEVICE, HOST, variant
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
    variants, places, inherited = msgpack.unpackb((folder / "variants").read_bytes())
    (folder / "variants").write_bytes(msgpack.packb([variants, dict.fromkeys(places, place), inherited]))
    with pytest.raises(PlanError, match="SchemaError"):
        read_artifacts(folder)


def test_folders_of_nobody_are_removed(tmp_path):
    folders = ArtifactFolders(tmp_path / "plans")
    for job in (1, 2):
        write_artifacts(folders.make(job), [variant(ARRAYS)])
    (tmp_path / "plans" / "stray").write_text("what is this")
    assert folders.nbytes(1) > 0
    folders.keep_only({2})
    assert [path.name for path in folders.directory.iterdir()] == ["2"]
    assert folders.nbytes(1) == 0

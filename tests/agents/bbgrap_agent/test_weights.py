"""The weight store: content is checked, limits are kept, a restart finds what was there."""

import os
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from bbgrap_agent import weights
from bbgrap_agent.weights import WeightStore

from bbgrap.errors import ExecutionError, RemoteProtocolError
from bbgrap.file_locks import lock_at
from bbgrap.graph.types import DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.messages import WeightChunk
from bbgrap.protocol.tensors import encode_array

LARGE = weights.SMALL_BYTES // 4 + 1
"""So many elements of a weight that is mapped."""


def chunks(array, size):
    content = bytes(encode_array(array))
    kind = TensorType(DType.of(array.dtype), array.shape)
    starts = range(0, max(len(content), 1), size)
    return [WeightChunk(digest_of(array), kind, start, len(content), (content[start : start + size],)) for start in starts]


def weight(seed, elements=100):
    return np.random.default_rng(seed).random(elements, dtype=np.float32)


@pytest.mark.parametrize("array", [weight(0), np.zeros((0, 3), np.int64), np.array(3.0), np.array(["a", "bc"], object)], ids=str)
def test_chunks_make_a_weight(tmp_path, array):
    store = WeightStore(tmp_path)
    pieces = chunks(array, 64)
    results = [store.add(piece) for piece in pieces]
    assert [complete for _, complete in results] == [False] * (len(pieces) - 1) + [True]
    assert results[-1][0] == pieces[0].size
    found = store.get(digest_of(array))
    np.testing.assert_array_equal(found, array)
    assert not found.flags.writeable


def file_behind(array):
    """The name of the file whose pages an array shows, as Linux tells it."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
        if begin <= address < end:
            return Path(line.split(maxsplit=5)[-1]).name
    raise AssertionError("it shows no pages of this process")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at mappings as Linux shows them")
def test_what_is_large_on_disk_takes_no_memory_of_its_own(tmp_path):
    large = weight(0, LARGE)
    for found in (stored(WeightStore(tmp_path), large), WeightStore(tmp_path).get(digest_of(large))):
        assert file_behind(found) == f"{digest_of(large)}.npy"


def test_repeated_and_lost_chunks_go_on_where_they_stopped(tmp_path):
    store = WeightStore(tmp_path)
    first, second, third, *_ = chunks(weight(0), 64)
    assert store.add(first) == (64, False)
    assert store.add(third) == (64, False)
    assert store.add(second) == (128, False)
    assert store.add(second) == (128, False)
    assert store.add(third) == (192, False)


def test_a_sender_that_starts_again_learns_how_far_it_was(tmp_path):
    store = WeightStore(tmp_path)
    first, second, third, *_ = chunks(weight(0), 64)
    store.add(first)
    store.add(second)
    assert store.add(first) == (128, False)  # after a broken connection: nothing of it is lost
    assert store.add(third) == (192, False)


def test_a_restart_finds_weights_on_disk(tmp_path):
    for piece in chunks(weight(0), 64):
        WeightStore(tmp_path).add(piece)
    store = WeightStore(tmp_path)
    for piece in chunks(weight(0), 64):
        store.add(piece)
    again = WeightStore(tmp_path)
    assert again.missing([digest_of(weight(0)), digest_of(weight(1))]) == (digest_of(weight(1)),)
    np.testing.assert_array_equal(again.get(digest_of(weight(0))), weight(0))


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + b"\1", lambda b: b"", lambda b: b"garbage" * 9])
def test_damage_on_disk_is_found(tmp_path, damage):
    store = WeightStore(tmp_path)
    for piece in chunks(weight(0), 1000):
        store.add(piece)
    (path,) = tmp_path.glob("*.npy")
    path.write_bytes(damage(path.read_bytes()))
    assert WeightStore(tmp_path).get(digest_of(weight(0))) is None
    assert not path.exists()


def test_wrong_content_and_sizes_are_refused(tmp_path):
    store = WeightStore(tmp_path)
    (piece,) = chunks(weight(0), 1000)
    kind = piece.type
    with pytest.raises(RemoteProtocolError, match="its content has another digest"):
        store.add(WeightChunk("ab" * 32, kind, 0, 400, piece.payload))
    with pytest.raises(RemoteProtocolError, match="do not fit its type"):
        store.add(WeightChunk(piece.digest, kind, 0, 404, piece.payload))
    with pytest.raises(RemoteProtocolError, match="beyond its 400 bytes"):
        store.add(WeightChunk(piece.digest, kind, 4, 400, piece.payload))


def test_memory_and_disk_are_bounded(tmp_path):
    store = WeightStore(tmp_path, memory_bytes=1000, disk_bytes=2500)
    for seed in range(10):
        for piece in chunks(weight(seed), 1000):
            store.add(piece)
    assert sum(array.nbytes for array in store._memory.values()) <= 1000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2500
    assert store.get(digest_of(weight(9))) is not None
    assert store.get(digest_of(weight(0))) is None


def test_small_weights_are_bounded_in_number_and_one_more_is_no_more_work_however_many_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MAX_IN_MEMORY", 32)
    store = WeightStore(tmp_path)
    for seed in range(40):
        for piece in chunks(weight(seed, 1), 1000):
            store.add(piece)
    assert list(store._memory) == [digest_of(weight(seed, 1)) for seed in range(8, 40)]
    assert store._held == sum(array.nbytes for array in store._memory.values()) == 128

    class Counted(OrderedDict):
        looks = 0

        def __iter__(self):
            Counted.looks += 1
            return super().__iter__()

    store._memory = Counted(list(store._memory.items())[:8])
    store.loaded(())
    assert not Counted.looks
    assert store.get(digest_of(weight(0, 1))) is not None  # read again


def put(store, *seeds):
    for seed in seeds:
        for piece in chunks(weight(seed), 1000):
            store.add(piece)


def digests(*seeds):
    return [digest_of(weight(seed)) for seed in seeds]


@pytest.fixture
def full(tmp_path, monkeypatch):
    """A folder on a disk that is full."""

    def refuse(stream, *_args, **_kwargs):
        stream.write(b"what there is room for")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights.np, "save", refuse)
    return tmp_path


def test_what_a_full_disk_does_not_take_stays_in_memory_until_it_is_loaded(full):
    store = WeightStore(full, memory_bytes=1000)
    assert len(store.missing(digests(*range(10)))) == 10
    put(store, *range(10))
    assert store.missing(digests(*range(10))) == ()
    assert list(full.iterdir()) == []
    store.loaded(digests(*range(10)))
    assert sum(array.nbytes for array in store._memory.values()) <= 1000


def test_what_numpy_counts_instead_of_naming_is_said_to_be_a_full_disk(tmp_path, monkeypatch, caplog):
    def refuse(*_args, **_kwargs):
        raise OSError("250 requested and 100 written")  # as `ndarray.tofile` says it, without an error number

    monkeypatch.setattr(weights.np, "save", refuse)
    put(WeightStore(tmp_path, memory_bytes=1000), 0)
    assert [text.partition(": ")[2] for text in caplog.messages] == ["250 requested and 100 written: is the disk full?"]


def test_what_no_deployment_needs_goes_first(full):
    store = WeightStore(full, memory_bytes=1000)
    store.missing(digests(0, 1, 2))
    put(store, 5, 0, 6, 1, 7, 2)
    assert list(store._memory) == digests(0, 1, 2)


def test_what_is_needed_is_not_needed_for_ever(full, monkeypatch):
    store = WeightStore(full, memory_bytes=1000)
    store.missing(digests(0, 1, 2, 3))
    put(store, 0, 1, 2, 3)
    now = time.monotonic() + weights.NEEDED_S + 1
    monkeypatch.setattr(weights.time, "monotonic", lambda: now)
    put(store, 4)
    assert list(store._memory) == digests(3, 4)


def test_no_memory_is_a_clear_error(full):
    store = WeightStore(full, memory_bytes=1000, free=lambda: 1000 - sum(a.nbytes for a in store._memory.values()))
    store.missing(digests(0, 1, 2))
    put(store, 0, 1)
    with pytest.raises(ExecutionError, match="it has 400 bytes, of memory there are 200 left; 800 bytes are kept there because the disk"):
        put(store, 2)


def test_weights_on_their_way_count(tmp_path):
    store = WeightStore(tmp_path, free=lambda: 500)
    store.add(chunks(weight(0), 64)[0])
    with pytest.raises(ExecutionError, match="there are 164 left"):
        store.add(chunks(weight(1), 64)[0])


@pytest.mark.broad
def test_a_folder_of_many_files_is_looked_at_seldom_and_stays_under_its_limit(tmp_path, monkeypatch):
    looks = []
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: (looks.append(pattern), glob(path, pattern))[1])
    size = 128 + weight(0).nbytes
    limit = 10 * 64 * size
    store = WeightStore(tmp_path, memory_bytes=500, disk_bytes=limit)
    looks.clear()
    most = 0
    for seed in range(700):
        put(store, seed)
        most = max(most, len(list(os.scandir(tmp_path))) * size)
    assert limit - 20 * size < most <= limit
    assert 70 <= looks.count("*.npy") <= 80, "one look for about ten weights"


def test_a_folder_is_bounded_in_files_too_however_small_they_are(tmp_path, monkeypatch):
    """Sixteen bytes took a block and an inode, and counted as 144: eight GiB of them were 60 million files."""
    monkeypatch.setattr(weights, "MAX_FILES", 128)
    store = WeightStore(tmp_path, memory_bytes=500, disk_bytes=1 << 20)
    for seed in range(300):
        put(store, seed)
    assert 120 <= len(list(tmp_path.iterdir())) <= 128
    store.missing(digests(*range(300, 500)))
    put(store, *range(300, 500))
    assert store.missing(digests(*range(300, 500))) == ()  # what a deployment needs stays


def test_a_weight_that_a_container_has_no_memory_for_is_refused(tmp_path, monkeypatch):
    """The machine had it, so the container's worker was ended."""
    monkeypatch.setattr("bbgrap.doctor.cgroups.room_bytes", lambda *_: 300)
    with pytest.raises(ExecutionError, match="it has 400 bytes, of memory there are 300 left"):
        put(WeightStore(tmp_path), 0)


def test_a_deployment_larger_than_the_disk_limit_is_loaded(tmp_path):
    store = WeightStore(tmp_path, memory_bytes=500, disk_bytes=1000)
    store.missing(digests(*range(5)))
    put(store, *range(5))
    assert store.missing(digests(*range(5))) == ()
    store.loaded(digests(*range(5)))
    put(store, 5)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000


def test_unfinished_files_of_the_dead_are_removed(tmp_path):
    names = {kind: tmp_path / f"{'a' * 64}.{kind}.part" for kind in ("dead", "alive", "old")}
    for path in names.values():
        path.write_bytes(b"123")
    os.utime(names["old"], (0, 0))
    locks = [lock_at(names[kind]) for kind in ("alive", "old")]
    WeightStore(tmp_path)
    assert list(tmp_path.iterdir()) == [names["alive"]]
    for descriptor in locks:
        os.close(descriptor)


def test_agents_with_one_number_in_two_containers_do_not_write_into_one_file(tmp_path, monkeypatch):
    """Each of them removed or overwrote what the other one wrote."""
    one, array, drafts = WeightStore(tmp_path), weight(0), []
    save = np.save

    def save_twice(stream, saved, **options):
        if not drafts:
            drafts.extend(tmp_path.glob("*.part"))
            other = WeightStore(tmp_path)  # starts meanwhile, and stores the same
            stored(other, array)
        save(stream, saved, **options)

    monkeypatch.setattr(np, "save", save_twice)
    stored(one, array)
    assert len(drafts) == 1
    assert digest_of(array) not in one._unsaved
    np.testing.assert_array_equal(WeightStore(tmp_path).get(digest_of(array)), array)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npy"]


def test_unfinished_files_of_others_count(tmp_path):
    part = tmp_path / f"{'a' * 64}.other.part"
    part.write_bytes(bytes(1000))
    descriptor = lock_at(part)
    put(WeightStore(tmp_path, disk_bytes=1600), 0, 1)
    os.close(descriptor)
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_a_file_that_was_cut_short_while_it_is_mapped_is_not_handed_out(tmp_path):
    store, large = WeightStore(tmp_path), weight(0, LARGE)
    put(store, 1)
    digest = digest_of(stored(store, large))
    path = tmp_path / f"{digest}.npy"
    os.truncate(path, 150)
    assert store.missing([digest, *digests(1)]) == (digest,)
    assert not path.exists()
    np.testing.assert_array_equal(stored(store, large), large)


def test_what_is_mapped_outlives_its_file(tmp_path):
    store, large = WeightStore(tmp_path), weight(0, LARGE)
    digest = digest_of(stored(store, large))
    (tmp_path / f"{digest}.npy").unlink()
    np.testing.assert_array_equal(store.get(digest), large)


def test_what_is_missing_for_damage_is_told_from_what_never_was_here(tmp_path):
    store = WeightStore(tmp_path)
    put(store, 0, 1)
    os.truncate(tmp_path / f"{digests(0)[0]}.npy", 150)
    assert store.get(digests(0)[0]) is None  # noticed in the middle of a load
    assert store.damaged(digests(0, 1, 2)) == tuple(digests(0))
    put(store, 0)
    assert store.damaged(digests(0, 1, 2)) == ()


def stored(store, array):
    for piece in chunks(array, 1 << 16):
        store.add(piece)
    return store.get(digest_of(array))


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux shows them")
def test_weights_take_no_descriptors(tmp_path):
    store, before = WeightStore(tmp_path), open_files()
    kept = [stored(store, weight(seed, elements)) for elements in (100, LARGE) for seed in range(20)]
    assert open_files() == before
    assert len(kept) == 40


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux shows them")
def test_a_file_that_cannot_be_opened_for_want_of_descriptors_is_not_damaged(tmp_path):
    import resource

    digests = [digest_of(stored(WeightStore(tmp_path), weight(0, elements))) for elements in (100, LARGE)]
    store, before = WeightStore(tmp_path), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))  # numbers count, and there may be free ones below the highest
    try:
        for digest in digests:
            with pytest.raises(ExecutionError, match=r"no file of weights can be opened: Too many open files; .*ulimit -n"):
                store.missing([digest])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert WeightStore(tmp_path).missing(digests) == ()


def test_what_was_begun_and_does_not_go_on_takes_no_memory_for_ever(tmp_path, monkeypatch):
    """Its coordinator was ended in the middle, and the next one wants other plans."""
    store, left = WeightStore(tmp_path), chunks(weight(0), 200)
    assert store.add(left[0]) == (200, False)
    now = time.monotonic() + weights.NEEDED_S + 1
    monkeypatch.setattr(weights.time, "monotonic", lambda: now)
    stored(store, weight(1))
    assert store.add(left[1]) == (0, False)


def test_parts_of_files_are_told_where_they_hold_the_weight(tmp_path):
    store = WeightStore(tmp_path)
    kept, cut, gone, unsaved = (weight(seed, LARGE) for seed in range(4))
    for array in (kept, cut, gone, unsaved):
        for chunk in chunks(array, 1 << 20):
            store.add(chunk)
    os.truncate(store.directory / f"{digest_of(cut)}.npy", 100_000)
    (store.directory / f"{digest_of(gone)}.npy").unlink()
    store._unsaved.add(digest_of(unsaved))
    found = store.parts({str(seed): digest_of(array) for seed, array in enumerate((kept, cut, gone, unsaved))})
    assert found.keys() == {"0"}
    content = (store.directory / found["0"].file).read_bytes()[found["0"].begin :]
    assert len(content) == found["0"].nbytes
    np.testing.assert_array_equal(np.frombuffer(content, np.float32), kept)

"""The weight store: content is checked, limits are kept, a restart finds what was there."""

import numpy as np
import pytest
from bbgrap_agent.weights import WeightStore

from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.messages import WeightChunk
from bbgrap.protocol.tensors import encode_array


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


def test_repeated_and_lost_chunks_go_on_where_they_stopped():
    store = WeightStore(None)
    first, second, third, *_ = chunks(weight(0), 64)
    assert store.add(first) == (64, False)
    assert store.add(third) == (64, False)
    assert store.add(second) == (128, False)
    assert store.add(second) == (128, False)
    assert store.add(third) == (192, False)


def test_a_sender_that_starts_again_learns_how_far_it_was():
    store = WeightStore(None)
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


def test_wrong_content_and_sizes_are_refused():
    store = WeightStore(None)
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

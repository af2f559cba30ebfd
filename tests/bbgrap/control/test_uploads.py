"""Uploads: what is offered is bounded, and what one client says of a file changes nothing for another."""

import pytest

from bbgrap.control import uploads
from bbgrap.control.coordinator_events import ChunkWritten
from bbgrap.control.coordinator_instructions import ToClient, WriteChunk
from bbgrap.control.uploads import Uploads, offer_digest
from bbgrap.protocol.client_messages import Failed, ModelChunk, ModelFile, ModelMissing, ModelStored, OfferModel
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.limits import MAX_MODEL_BYTES

A, B = "a" * 64, "b" * 64
ONE, TWO = b"one", b"two"


def offer(*files):
    return OfferModel(1, offer_digest(files), files)


def answer(instructions):
    said, *_ = instructions
    assert isinstance(said, ToClient)
    return said.message


def test_a_model_is_here_when_its_files_are():
    store, message = Uploads({}), offer(ModelFile("m", A, 5), ModelFile("w", B, 7))
    assert answer(store.offer(ONE, message)) == ModelMissing(1, (A, B))
    for digest, size in ((A, 5), (B, 7)):
        assert store.files_of(message.model) is None
        assert store.chunk(ONE, ModelChunk(1, digest, 0, (b"",))) == [
            WriteChunk(ONE, ModelChunk(1, digest, 0, (b"",)), size, message.files)
        ]
        assert answer(store.written(ChunkWritten(ONE, 1, digest, size, complete=True))) == ModelStored(1, size, complete=True)
    assert store.files_of(message.model) == message.files
    store.forget((B,))
    assert store.files_of(message.model) is None
    assert answer(store.offer(ONE, message)) == ModelMissing(1, (B,))


def test_another_client_changes_no_size():
    store = Uploads({})
    store.offer(ONE, offer(ModelFile("m", A, 5)))
    store.offer(TWO, offer(ModelFile("m", A, 6)))
    (first,), (second,) = (store.chunk(client, ModelChunk(1, A, 0, (b"",))) for client in (ONE, TWO))
    assert (first.size, second.size) == (5, 6)
    store.written(ChunkWritten(ONE, 1, A, 5, complete=True))
    assert store.files_of(offer(ModelFile("m", A, 6)).model) is None
    refused = answer(store.offer(TWO, offer(ModelFile("m", A, 6))))
    assert (refused.fault, refused.reason) == (Fault.PROTOCOL, "model: file 'm' has 5 bytes by its digest, not 6")


def test_a_file_that_was_cut_short_before_the_start_is_brought_again():
    """As by a power cut. It was refused for good: `file 'm' has 3 bytes by its digest, not 5`."""
    message = offer(ModelFile("m", A, 5))
    store = Uploads({A: 3}, {message.model: message.files})
    assert answer(store.offer(ONE, message)) == ModelMissing(1, (A,))
    (write,) = store.chunk(ONE, ModelChunk(1, A, 0, (b"12345",)))
    assert (type(write), write.size) == (WriteChunk, 5)
    store.written(ChunkWritten(ONE, 1, A, 5, complete=True))
    assert store.files_of(message.model) == message.files
    assert answer(store.chunk(TWO, ModelChunk(1, A, 0, (b"1",)))) == ModelStored(1, 5, complete=True)


def test_a_file_of_which_a_piece_has_come_takes_the_next_one():
    store = Uploads({})
    store.offer(ONE, offer(ModelFile("m", A, 5)))
    assert answer(store.written(ChunkWritten(ONE, 1, A, 3, complete=False))) == ModelStored(1, 3, complete=False)
    (write,) = store.chunk(ONE, ModelChunk(1, A, 3, (b"45",)))
    assert (type(write), write.size) == (WriteChunk, 5)


def test_a_file_that_nobody_offered_is_not_taken():
    store = Uploads({})
    store.offer(ONE, offer(ModelFile("m", A, 5)))
    assert answer(store.chunk(TWO, ModelChunk(1, A, 0, (b"",)))) == Failed(1, Fault.UNKNOWN_MODEL, "model: the file was not offered")


@pytest.mark.parametrize(
    "files",
    [
        [ModelFile("m", A, MAX_MODEL_BYTES + 1)],
        [ModelFile("m", A, MAX_MODEL_BYTES), ModelFile("w", B, 1)],
        [ModelFile(f"{k}", f"{k:064x}", 0) for k in range(uploads.MAX_FILES + 1)],
    ],
    ids=["one file", "all files", "their number"],
)
def test_offers_are_bounded(files):
    store = Uploads({})
    refused = answer(store.offer(ONE, offer(*files)))
    assert refused.fault is Fault.MODEL
    assert "a cluster takes" in refused.reason
    assert store._missing == {}


@pytest.mark.parametrize("names", [["w/m"], ["m", "m/w"], ["m", "w", "w/a/b"], ["m", "w/a/b", "w/a"]])
def test_no_folder_has_the_name_of_a_file_and_the_model_lies_in_none(names):
    store = Uploads({})
    refused = answer(store.offer(ONE, offer(*(ModelFile(name, A, 5) for name in names))))
    assert (refused.fault, store._missing, store._offers) == (Fault.PROTOCOL, {}, {})
    assert "lies in a folder" in refused.reason


def test_weights_may_lie_in_folders():
    store, files = Uploads({}), [ModelFile(name, A, 5) for name in ("m", "w/m", "w/a/m")]
    assert answer(store.offer(ONE, offer(*files))) == ModelMissing(1, (A,))


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(uploads, "MAX_CLIENTS", 3)
    monkeypatch.setattr(uploads, "MAX_FILES", 2)
    store = Uploads({})
    for client in range(5):
        for k in range(5):
            store.offer(bytes([client]), offer(ModelFile("m", f"{k:064x}", 5)))
    assert {client: len(sizes) for client, sizes in store._missing.items()} == {bytes([k]): 2 for k in (2, 3, 4)}


def test_what_made_room_is_forgotten():
    store = Uploads({B: 7})
    store.offer(ONE, offer(ModelFile("m", A, 5)))
    store.written(ChunkWritten(ONE, 1, A, 5, complete=True, gone=(B,)))
    assert store.stored == {A: 5}


@pytest.mark.parametrize(("is_busy", "fault"), [(True, Fault.BUSY), (False, Fault.MODEL)])
def test_what_there_is_no_room_for_may_come_again(is_busy, fault):
    done = ChunkWritten(ONE, 1, A, 0, complete=False, fault="no room", is_busy=is_busy)
    assert answer(Uploads({}).written(done)) == Failed(1, fault, "no room")

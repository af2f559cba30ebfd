"""The coordinator's model files: only what is complete and has its digest is kept."""

import hashlib

from bbgrap_coordinator.models import ModelStore

from bbgrap.control.coordinator_events import ChunkWritten, WriteChunk
from bbgrap.protocol.client_messages import ModelChunk, ModelFile

CONTENT = b"0123456789"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def write(store, offset, piece, digest=DIGEST):
    return store.write(WriteChunk(b"client", ModelChunk(1, digest, offset, (piece,)), len(CONTENT)))


def test_pieces_make_a_file(tmp_path):
    store = ModelStore(tmp_path)
    assert write(store, 0, b"0123") == ChunkWritten(b"client", 1, DIGEST, 4, complete=False)
    assert write(store, 0, b"0123").received == 4
    assert write(store, 7, b"789").received == 4
    assert store.stored() == {}
    assert write(store, 4, b"456789") == ChunkWritten(b"client", 1, DIGEST, 10, complete=True)
    assert store.stored() == {DIGEST: 10}
    assert ModelStore(tmp_path).stored() == {DIGEST: 10}


def test_another_content_is_refused(tmp_path):
    store = ModelStore(tmp_path)
    done = write(store, 0, b"9876543210")
    assert not done.complete
    assert "did it change while it was sent?" in done.fault
    assert list(tmp_path.iterdir()) == []
    assert write(store, 0, CONTENT).complete


def test_a_piece_beyond_the_end_is_refused(tmp_path):
    assert "lies beyond the file's 10 bytes" in write(ModelStore(tmp_path), 0, CONTENT * 2).fault


def test_files_appear_under_their_names_for_a_while(tmp_path):
    store = ModelStore(tmp_path)
    write(store, 0, CONTENT)
    with store.folder([ModelFile("net.onnx", DIGEST, 10)]) as path:
        assert path.name == "net.onnx"
        assert path.read_bytes() == CONTENT
    assert not path.exists()


def test_remains_of_a_crash_are_removed(tmp_path):
    (tmp_path / f"{DIGEST}.part").write_bytes(b"0")
    (tmp_path / "model-abc").mkdir()
    ModelStore(tmp_path)
    assert list(tmp_path.iterdir()) == []

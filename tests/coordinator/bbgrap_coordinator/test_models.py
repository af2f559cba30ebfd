"""The coordinator's model files: only what is complete and has its digest is kept."""

import errno
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from bbgrap_coordinator import models
from bbgrap_coordinator.models import ModelGoneError, ModelStore

from bbgrap.control.coordinator_events import ChunkWritten
from bbgrap.control.coordinator_instructions import WriteChunk
from bbgrap.control.uploads import Uploads, offer_digest
from bbgrap.errors import ModelError
from bbgrap.protocol.client_messages import ModelChunk, ModelFile, OfferModel

CONTENT = b"0123456789"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


FILE = ModelFile("net.onnx", DIGEST, len(CONTENT))


def write(store, offset, piece, digest=DIGEST, client=b"client", size=10):
    return store.write(WriteChunk(client, ModelChunk(1, digest, offset, (piece,)), size))


def bring(store, content):
    digest = hashlib.sha256(content).hexdigest()
    return digest, write(store, 0, content, digest, size=len(content))


def test_pieces_make_a_file(tmp_path):
    store = ModelStore(tmp_path)
    assert write(store, 0, b"0123") == ChunkWritten(b"client", 1, DIGEST, 4, complete=False)
    assert write(store, 0, b"0123").received == 4
    assert write(store, 7, b"789").received == 4
    assert store.stored() == {}
    assert write(store, 4, b"456789") == ChunkWritten(b"client", 1, DIGEST, 10, complete=True)
    assert store.stored() == {DIGEST: 10}
    assert ModelStore(tmp_path).stored() == {DIGEST: 10}


def test_a_folder_that_was_removed_is_made_anew(tmp_path, caplog):
    folder = tmp_path / "state" / "models"
    store = ModelStore(folder)
    write(store, 0, b"0123")
    shutil.rmtree(tmp_path / "state")
    assert write(store, 4, b"456789").fault
    assert write(store, 0, CONTENT).complete
    assert store.stored() == {DIGEST: 10}
    assert f"'{folder}' was removed" in caplog.text


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


DAMAGES = {
    "other content": lambda path: path.write_bytes(b"9876543210"),
    "cut": lambda path: path.write_bytes(CONTENT[:5]),
    "longer": lambda path: path.write_bytes(CONTENT * 2),
    "empty": lambda path: path.write_bytes(b""),
    "another file": lambda path: (path.unlink(), path.write_bytes(b"9876543210")),
    "a link": lambda path: (path.rename(path.with_suffix(".away")), path.symlink_to(path.with_suffix(".away"))),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
def test_damaged_files_are_not_used_and_can_be_brought_again(tmp_path, damage, restarted):
    store = ModelStore(tmp_path)
    write(store, 0, CONTENT)
    with store.folder([FILE]):
        pass
    facts = (tmp_path / DIGEST).stat()
    damage(tmp_path / DIGEST)
    if (tmp_path / DIGEST).exists():
        os.utime(tmp_path / DIGEST, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    store = ModelStore(tmp_path) if restarted else store
    with pytest.raises(ModelGoneError, match="brought again") as raised, store.folder([FILE]):
        pass
    assert raised.value.gone == (DIGEST,)
    assert store.stored() == {}
    assert write(store, 0, CONTENT).complete
    with store.folder([FILE]) as path:
        assert path.read_bytes() == CONTENT


def test_a_file_is_brought_to_the_disk_with_its_name(tmp_path, monkeypatch):
    done, store = [], ModelStore(tmp_path)
    monkeypatch.setattr(models.os, "fsync", lambda handle: done.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    write(store, 0, CONTENT)
    store.sync(DIGEST)
    assert done == [str(tmp_path / DIGEST), str(tmp_path)]


def test_a_file_is_hashed_once(tmp_path, monkeypatch):
    write(ModelStore(tmp_path), 0, CONTENT)
    store, hashed = ModelStore(tmp_path), []
    real = hashlib.file_digest
    monkeypatch.setattr(models.hashlib, "file_digest", lambda *args: hashed.append(args) or real(*args))
    for _ in range(3):
        with store.folder([FILE]):
            pass
    assert len(hashed) == 1


def test_a_client_that_lies_about_a_size_does_no_harm(tmp_path):
    store = ModelStore(tmp_path)
    write(store, 0, CONTENT)
    with pytest.raises(ModelError, match="does not have 5 bytes"), store.folder([ModelFile("net.onnx", DIGEST, 5)]):
        pass
    assert store.stored() == {DIGEST: 10}


def test_pieces_of_another_client_are_never_part_of_a_file(tmp_path):
    store = ModelStore(tmp_path)
    write(store, 0, b"bad", client=b"enemy")
    assert write(store, 0, CONTENT[:4]).received == 4
    write(store, 0, b"bad", client=b"enemy", size=3)
    assert write(store, 4, CONTENT[4:]).complete
    assert store.stored() == {DIGEST: 10}


def test_files_used_least_recently_make_room(tmp_path):
    store = ModelStore(tmp_path, max_bytes=25)
    first, _ = bring(store, b"a" * 10)
    second, _ = bring(store, b"b" * 10)
    for digest, used in ((first, 2_000), (second, 1_000)):
        os.utime(tmp_path / digest, ns=(used, used))
    third, written = bring(store, b"c" * 10)
    assert written.gone == (second,)
    assert set(store.stored()) == {first, third}
    huge, written = bring(store, b"d" * 100)
    assert (written.complete, set(written.gone), set(store.stored())) == (True, {first, third}, {huge})


def test_files_are_bounded_in_number_too(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "MAX_STORED", 5)
    store = ModelStore(tmp_path)
    for number in range(20):
        digest, written = bring(store, b"%d" % number)
        assert written.complete
    assert len(store.stored()) == 5
    assert digest in store.stored()


def test_a_model_of_more_than_is_kept_is_complete_when_its_last_file_is(tmp_path):
    """Its files made room for each other: they were brought again and again, for ever."""
    store = ModelStore(tmp_path, max_bytes=25)
    old, other = (bring(store, letter * 10)[0] for letter in (b"a", b"b"))
    os.utime(tmp_path / old, ns=(0, 0))
    uploads, contents = Uploads(store.stored()), {b"a": 10, b"c": 10, b"d": 15}
    digests = {hashlib.sha256(letter * size).hexdigest(): letter * size for letter, size in contents.items()}
    files = tuple(ModelFile(f"{number}", digest, len(content)) for number, (digest, content) in enumerate(digests.items()))
    model = offer_digest(files)
    (answer, *_) = uploads.offer(b"client", OfferModel(1, model, files))
    for digest in answer.message.digests:
        (piece,) = uploads.chunk(b"client", ModelChunk(1, digest, 0, (digests[digest],)))
        uploads.written(store.write(piece))
    assert uploads.files_of(model) == files
    assert other not in store.stored()
    assert set(ModelStore(tmp_path).stored()) == set(digests), "nor does it go at a start"


def test_room_on_the_disk_and_uploads_are_bounded(tmp_path, monkeypatch):
    def busy(done):
        return done.fault if done.is_busy else ""

    store = ModelStore(tmp_path)
    assert "there is room for" in busy(write(store, 0, CONTENT, size=1 << 60))
    monkeypatch.setattr(models, "MAX_ARRIVING", 2)
    assert write(store, 0, b"0", client=b"1").received == 1
    assert write(store, 0, b"0", client=b"2").received == 1
    assert "2 files are on their way" in busy(write(store, 0, b"0", client=b"3"))
    now = models.time.monotonic() + models.IDLE_S
    monkeypatch.setattr(models.time, "monotonic", lambda: now)
    assert write(store, 1, b"1", client=b"2").received == 2
    assert write(store, 0, b"0", client=b"3").received == 1
    assert write(store, 1, b"1", client=b"1").received == 0  # it made room, and starts again
    assert len(list(tmp_path.glob("*.part"))) == 2
    monkeypatch.setattr(models, "MAX_ARRIVING_BYTES", 3)
    assert "bytes are on their way" in busy(write(store, 2, b"2345", client=b"2"))


def test_files_that_arrive_at_once_leave_room_on_the_disk(tmp_path, monkeypatch):
    store = ModelStore(tmp_path)
    assert write(store, 0, b"0123").received == 4
    monkeypatch.setattr(models.shutil, "disk_usage", lambda _: SimpleNamespace(free=models.MIN_FREE_BYTES + 3))
    done = write(store, 4, b"4567")
    assert (done.is_busy, "of the disk stay free" in done.fault) == (True, True)


def test_no_client_takes_the_places_of_all_others(tmp_path, monkeypatch):
    store = ModelStore(tmp_path)
    monkeypatch.setattr(models, "MAX_OF_CLIENT", 2)
    digests = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
    done = [write(store, 0, b"0", digest, b"1") for digest in digests[:3]]
    assert [piece.received for piece in done] == [1, 1, 0]
    assert (done[2].is_busy, "2 files of this client are on their way" in done[2].fault) == (True, True)
    assert write(store, 0, b"0", client=b"2").received == 1
    now = models.time.monotonic() + models.IDLE_S
    monkeypatch.setattr(models.time, "monotonic", lambda: now)
    assert write(store, 0, b"0", digests[3], b"1").received == 1


@pytest.mark.parametrize(("number", "is_busy"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False), (errno.EIO, False)])
def test_a_full_disk_is_a_reason_to_come_again_and_logged_once(tmp_path, monkeypatch, caplog, number, is_busy):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    store = ModelStore(tmp_path)
    write(store, 0, b"0123")
    monkeypatch.setattr(ModelStore, "_append", fails)
    done = write(store, 4, b"4")
    assert (done.is_busy, done.fault.rpartition(": ")[2]) == (is_busy, os.strerror(number))
    write(store, 0, b"0")
    assert caplog.messages == [done.fault]
    monkeypatch.undo()
    assert write(store, 0, CONTENT).complete

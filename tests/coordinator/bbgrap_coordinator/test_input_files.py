"""Large inputs that are kept are files without names, and stay what they were; who writes them keeps nobody waiting."""

import os
import queue
import threading

from bbgrap_coordinator.input_files import LARGE_BYTES, IncomingRequests, InputFiles

from bbgrap.control.sequence import keep
from bbgrap.protocol.client_messages import RunModel

CLIENT = b"client"


def test_large_inputs_are_files_without_names(tmp_path):
    given = [bytearray(os.urandom(LARGE_BYTES)), b"", b"labels", memoryview(b"more")]
    wanted = list(map(bytes, given))
    kept = InputFiles(tmp_path).store(given)
    given[0][:] = bytes(LARGE_BYTES)  # by the client, whose memory it is
    assert list(map(bytes, kept)) == wanted
    assert all(isinstance(each, memoryview) and each.readonly for each in kept)
    assert all(one is other for one, other in zip(keep(kept), kept, strict=True))
    assert not list(tmp_path.iterdir())


def test_small_ones_and_those_without_room_on_disk_stay_in_memory(tmp_path):
    small, large = [memoryview(b"few"), b"bytes"], [bytes(LARGE_BYTES)]
    assert keep(small) == (b"few", b"bytes")
    for kept in (*keep(small), *keep(InputFiles(tmp_path / "nowhere").store(large))):
        assert isinstance(kept, bytes)


def request(call, size=LARGE_BYTES, sequence=1):
    return RunModel(call, "ab" * 32, 1.0, (), (bytes(size),), sequence=sequence)


class SlowFiles(InputFiles):
    """A disk that writes when it is told to."""

    def __init__(self, directory):
        super().__init__(directory)
        self.turns = threading.Semaphore(0)

    def store(self, inputs):
        self.turns.acquire()
        return super().store(inputs)


def test_requests_are_handed_on_once_when_their_inputs_are_written_unless_cancelled(tmp_path, monkeypatch):
    files, written = SlowFiles(tmp_path), queue.Queue()
    incoming = IncomingRequests(files, written.put)
    assert [incoming.concerns(each) for each in (request(1), request(2, 100), request(3, sequence=0))] == [True, False, False]
    monkeypatch.setattr("bbgrap_coordinator.input_files.MAX_WRITING_BYTES", 2 * LARGE_BYTES)
    assert [incoming.take(CLIENT, request(call)) for call in (1, 1, 2)] == ["", "", ""]
    assert incoming.take(CLIENT, request(3)) == f"the inputs of 2 requests, {2 * LARGE_BYTES:,} bytes, wait for the disk already"
    incoming.cancel(CLIENT, 1)
    incoming.cancel(CLIENT, 4)
    assert written.empty()
    files.turns.release(3)
    assert incoming.stored(written.get(timeout=60)) is None
    message = incoming.stored(written.get(timeout=60))
    assert (message.call, message.payload) == (2, (bytes(LARGE_BYTES),))
    assert incoming.take(CLIENT, request(3, 3 * LARGE_BYTES)) == ""
    assert incoming.stored(written.get(timeout=60)).call == 3
    assert written.empty()
    incoming.close()

"""Large inputs that are kept are files without names, and stay what they were."""

import os

from bbgrap_coordinator.input_files import LARGE_BYTES, InputFiles


def test_large_inputs_are_files_without_names(tmp_path):
    given = [bytearray(os.urandom(LARGE_BYTES)), b"", b"labels", memoryview(b"more")]
    wanted = list(map(bytes, given))
    kept = InputFiles(tmp_path).keep(given)
    given[0][:] = bytes(LARGE_BYTES)  # by the client, whose memory it is
    assert list(map(bytes, kept)) == wanted
    assert all(isinstance(each, memoryview) and each.readonly for each in kept)
    assert not list(tmp_path.iterdir())


def test_small_ones_and_those_without_room_on_disk_stay_in_memory(tmp_path):
    small, large = [memoryview(b"few"), b"bytes"], [bytes(LARGE_BYTES)]
    assert InputFiles(tmp_path).keep(small) == (b"few", b"bytes")
    for kept in (*InputFiles(tmp_path).keep(small), *InputFiles(tmp_path / "nowhere").keep(large)):
        assert isinstance(kept, bytes)

"""Bringing a model's files, over a wire that loses, to the store and the offers of a real coordinator."""

import os
import time
from collections import deque
from pathlib import Path

import pytest
from bbgrap_coordinator.models import ModelStore
from hypothesis import given, settings
from hypothesis import strategies as st

from bbgrap.control.send_window import PIECES
from bbgrap.control.uploads import Uploads
from bbgrap.errors import ModelError
from bbgrap.protocol.client_messages import ModelChunk, OfferModel
from bbgrap.protocol.limits import MAX_CHUNK_BYTES
from bbgrap.session.model_files import MOST_AHEAD, ModelFiles

CLIENT = b"client"


class LossyCoordinator:
    """Answers as a coordinator does, but what is said for the first time may be lost: it arrives after what was said later."""

    def __init__(self, folder, lost=()):
        self.store = ModelStore(folder)
        self.uploads = Uploads({})
        self.lost = deque(lost)
        self.calls = 0
        self.arriving, self.late, self.answers = deque(), deque(), {}
        self.most_open, self.began, self.open, self.most_bytes = 0, 0, 0, 0
        self.bytes_s = float("inf")

    def number(self):
        self.calls += 1
        return self.calls

    def try_call(self, message, expected, timeout_s):
        assert isinstance(message, OfferModel)
        return self._answer(self.uploads.offer(CLIENT, message)[0], expected)

    def begin(self, message, timeout_s):
        self.began += len(message.payload[0])
        self.open += len(message.payload[0])
        self.most_bytes = max(self.most_bytes, self.open)
        (self.late if self.lost and self.lost.popleft() else self.arriving).append(message)
        self.most_open = max(self.most_open, len(self.arriving) + len(self.late) + len(self.answers))

    def answer_to(self, message, expected, timeout_s):
        while message.call not in self.answers:
            self._take((self.arriving or self.late).popleft())
        return self._answer(self.answers.pop(message.call), expected)

    def forget(self, message):
        self.answers.pop(message.call, None)

    def _take(self, chunk: ModelChunk):
        time.sleep(len(chunk.payload[0]) / self.bytes_s)
        self.open -= len(chunk.payload[0])
        (instruction,) = self.uploads.chunk(CLIENT, chunk)
        if hasattr(instruction, "chunk"):
            (instruction,) = self.uploads.written(self.store.write(instruction))
        self.answers[chunk.call] = instruction

    def _answer(self, instruction, expected):
        assert isinstance(instruction.message, expected)
        return instruction.message


def left_s():
    return 1.0


@pytest.fixture
def content():
    return bytes(range(251)) * (MAX_CHUNK_BYTES // 50)


def test_several_pieces_are_on_their_way_at_once(tmp_path, content):
    (tmp_path / "net.onnx").write_bytes(content)
    coordinator = LossyCoordinator(tmp_path / "store")
    told = []
    ModelFiles(tmp_path / "net.onnx", ()).bring(coordinator, left_s, lambda progress: told.append(progress.done))
    assert list(coordinator.store.stored().values()) == [len(content)]
    assert PIECES <= coordinator.most_open <= 2 * PIECES
    assert coordinator.most_bytes <= MOST_AHEAD
    assert coordinator.began == len(content)
    assert told == sorted(told)
    assert told[-1] == len(content)


def test_little_of_it_is_on_a_slow_way_at_once(tmp_path):
    """4 MiB were, and small requests of others took 1.3 s at 5 Mbit/s, those behind it on its connection longer."""
    (tmp_path / "net.onnx").write_bytes(b"w" * 900_000)
    coordinator = LossyCoordinator(tmp_path / "store")
    coordinator.bytes_s = 1.5e6
    ModelFiles(tmp_path / "net.onnx", ()).bring(coordinator, left_s)
    assert coordinator.most_bytes < 800_000  # what it takes within half a second


@settings(max_examples=25)
@given(
    lost=st.lists(st.booleans(), max_size=12), size=st.sampled_from([0, 1, MAX_CHUNK_BYTES, 3 * MAX_CHUNK_BYTES + 7, 9 * MAX_CHUNK_BYTES])
)
def test_what_is_lost_is_said_again_until_all_is_there(tmp_path_factory, lost, size):
    home = tmp_path_factory.mktemp("lossy")
    (home / "net.onnx").write_bytes(b"w" * size)
    coordinator = LossyCoordinator(home / "store", lost)
    ModelFiles(home / "net.onnx", ()).bring(coordinator, left_s)
    assert list(coordinator.store.stored().values()) == [size]


def test_a_file_that_shrinks_meanwhile_is_an_error(tmp_path, content):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    files = ModelFiles(path, ())
    coordinator = LossyCoordinator(tmp_path / "store")
    begin = coordinator.begin

    def shrinks(message, timeout_s):
        path.write_bytes(content[: 2 * MAX_CHUNK_BYTES])
        begin(message, timeout_s)

    coordinator.begin = shrinks
    with pytest.raises(ModelError, match=r"it changed while it was sent"):
        files.bring(coordinator, left_s)
    assert coordinator.store.stored() == {}


def test_only_what_is_missing_is_brought(tmp_path, content):
    (tmp_path / "net.onnx").write_bytes(content)
    coordinator = LossyCoordinator(tmp_path / "store")
    for _ in range(2):
        ModelFiles(tmp_path / "net.onnx", ()).bring(coordinator, left_s)
    assert coordinator.began == len(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.write_bytes(b"other"), "has changed since this session was made"),
        (lambda path: path.with_name("new").replace(path), "has changed since this session was made"),
        (lambda path: path.unlink(), "cannot be read any more: No such file or directory"),
    ],
)
def test_what_is_brought_is_what_was_there_at_first(tmp_path, change, said):
    path = tmp_path / "net.onnx"
    for file, content in ((path, b"model"), (tmp_path / "new", b"MODEL")):
        file.write_bytes(content)
    files, twice = ModelFiles(path, ()), ModelFiles(path, ())
    coordinator = LossyCoordinator(tmp_path / "store")
    twice.bring(coordinator, left_s)
    time.sleep(0.01)  # times of files are that coarse
    change(path)
    with pytest.raises(ModelError, match=said):
        files.bring(coordinator, left_s)
    with pytest.raises(ModelError, match=said):
        twice.bring(LossyCoordinator(tmp_path / "other"), left_s)  # one that has forgotten the model


def test_a_file_that_was_only_touched_is_brought_again(tmp_path, content):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    files = ModelFiles(path, ())
    files.bring(LossyCoordinator(tmp_path / "store"), left_s)
    os.utime(path, (1, 1))
    other = LossyCoordinator(tmp_path / "other")
    files.bring(other, left_s)
    assert list(other.store.stored().values()) == [len(content)]


def test_a_relative_path_is_taken_from_where_it_was_given(tmp_path, monkeypatch, content):
    (tmp_path / "net.onnx").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    files = ModelFiles(Path("net.onnx"), ())
    monkeypatch.chdir("/")
    coordinator = LossyCoordinator(tmp_path / "store")
    files.bring(coordinator, left_s)
    assert list(coordinator.store.stored().values()) == [len(content)]


def test_weights_in_folders_are_brought_by_their_names(tmp_path, content):
    (tmp_path / "sub" / "parts").mkdir(parents=True)
    for name, held in (("net.onnx", b"model"), ("sub/net.data", content), ("sub/parts/net.data", b"part")):
        (tmp_path / name).write_bytes(held)
    coordinator = LossyCoordinator(tmp_path / "store")
    digest = ModelFiles(tmp_path / "net.onnx", ("sub/net.data", "sub/parts/net.data")).bring(coordinator, left_s)
    with coordinator.store.folder(coordinator.uploads._offers[digest]) as path:
        assert path.read_bytes() == b"model"
        assert (path.parent / "sub" / "net.data").read_bytes() == content
        assert (path.parent / "sub" / "parts" / "net.data").read_bytes() == b"part"


@pytest.mark.parametrize("name", ["../w", "/w", "a/../w", "a//w", "a\\w", "a/w\n", "x" * 256, "a/" * 9 + "w"])
def test_weight_files_that_no_cluster_takes_are_refused_at_once(tmp_path, name):
    with pytest.raises(ModelError, match=r"its weights are in '.*'; a cluster takes names of up to 255 bytes in up to 8 folders"):
        ModelFiles(tmp_path / "net.onnx", (name,))


def test_the_models_file_goes_by_the_name_that_it_is_given(tmp_path, content):
    """As one of many `model.onnx`; those of weights keep theirs, for the model has them inside."""
    for name, held in (("model.onnx", b"model"), ("w.bin", content)):
        (tmp_path / name).write_bytes(held)
    coordinator, plain = LossyCoordinator(tmp_path / "store"), LossyCoordinator(tmp_path / "other")
    digest = ModelFiles(tmp_path / "model.onnx", ["w.bin"], "detector.onnx").bring(coordinator, left_s)
    assert digest != ModelFiles(tmp_path / "model.onnx", ["w.bin"]).bring(plain, left_s)
    assert coordinator.store.stored() == plain.store.stored()

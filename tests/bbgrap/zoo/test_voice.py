"""The voice model: its state is that of its recurrent layer, carried from chunk to chunk."""

import numpy as np
import onnxruntime as ort
import pytest

from bbgrap import zoo
from bbgrap.graph import check_graph
from bbgrap.zoo.voice import HIDDEN, SAMPLES
from tests.partition import assert_close


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    path = zoo.materialize("voice", tmp_path_factory.mktemp("voice"))
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def front(w, samples):
    """Return the frames [T, features] of one chunk."""
    x = samples[None]
    for n, (stride, pad) in enumerate(((32, 16), (2, 1), (2, 1)), 1):
        filters, padded = w[f"conv{n}.weight"], np.pad(x, ((0, 0), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, filters.shape[2], axis=1)[:, ::stride]
        x = np.maximum(np.einsum("oik,itk->ot", filters, windows) + w[f"conv{n}.bias"][:, None], 0)
    return x.T


def by_hand(w, frames, hidden, cell):
    """Walk over frames; gates are in onnx's order: input, output, forget, cell."""
    biases = w["lstm.bias"].reshape(2, -1).sum(axis=0)
    for frame in frames:
        gates = w["lstm.weight"][0] @ frame + w["lstm.recurrence"][0] @ hidden + biases
        i, o, f, c = gates.reshape(4, HIDDEN)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        hidden = sigmoid(o) * np.tanh(cell)
    return hidden, cell


def test_chunk_by_chunk_it_is_the_recurrence_over_the_whole_sound(session):
    graph = zoo.build("voice")
    assert check_graph(graph) == ()
    w = {name: weight.array.astype(np.float64) for name, weight in graph.weights.items()}
    sound = np.random.default_rng(2).standard_normal((10, SAMPLES), np.float32)
    state, said, wanted = np.zeros((2, 1, HIDDEN), np.float32), [], []
    hidden, cell = np.zeros(HIDDEN), np.zeros(HIDDEN)
    for chunk in sound:
        output, state = session.run(["output", "stateN"], {"input": chunk[None], "state": state})
        said.append(output[0, 0])
        hidden, cell = by_hand(w, front(w, chunk.astype(np.float64)), hidden, cell)
        wanted.append(sigmoid(np.maximum(hidden, 0) @ w["logit.weight"][0] + w["logit.bias"][0]))
        assert_close(state[:, 0], np.array([hidden, cell]), "state", 1e-5)
    assert_close(np.array(said), np.array(wanted), "output", 1e-5)
    assert np.std(said) > 1e-2, "it answers differently to every chunk"


def test_sounds_of_a_batch_do_not_meet(session):
    sound, state = (np.random.default_rng(k).standard_normal(shape, np.float32) for k, shape in ((3, (3, SAMPLES)), (4, (2, 3, HIDDEN))))
    outputs, states = session.run(["output", "stateN"], {"input": sound, "state": state})
    for k in range(3):
        output, after = session.run(["output", "stateN"], {"input": sound[k : k + 1], "state": state[:, k : k + 1]})
        assert_close(outputs[k : k + 1], output, "output", 1e-5)
        assert_close(states[:, k : k + 1], after, "state", 1e-5)

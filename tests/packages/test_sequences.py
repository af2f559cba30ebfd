"""Silero VAD hears a minute of sound in one sequence, chunk by chunk as its package does, and is as sure as on plain onnxruntime."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import bbgrap
from bbgrap.graph.types import Array

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]

RATE, CHUNK, CONTEXT = 16_000, 512, 64
"""Hertz, and samples: those of a chunk, and those of the chunk before that come with it."""
SECONDS = 60


def model() -> Path | None:
    """Return the file in the package, which is looked for without being imported."""
    spec = find_spec("silero_vad")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    return Path(places[0], "data", "silero_vad.onnx") if places else None


def sound() -> Array:
    """Return a minute of hums of a voice's pitch, bursts of noise, and near silence, second by second."""
    dice, time = np.random.default_rng(7), np.arange(RATE) / RATE
    parts = []
    for kind in dice.integers(0, 3, SECONDS):
        pitch = dice.uniform(90, 250)
        hum = sum(np.sin(2 * np.pi * pitch * n * time) / n for n in range(1, 12)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * time))
        parts.append((0.2 * hum, 0.3 * dice.standard_normal(RATE), 0 * time)[kind] + 0.002 * dice.standard_normal(RATE))
    return np.concatenate(parts).astype(np.float32)


def chunks() -> list[Array]:
    """Return what the model is given, [1, 576] each."""
    heard = sound()
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), heard])
    return [padded[None, start : start + CONTEXT + CHUNK] for start in range(0, heard.size - CHUNK + 1, CHUNK)]


@pytest.mark.skipif(model() is None, reason="Silero VAD is not installed; run 'make test-packages'")
def test_a_minute_of_sound_in_one_sequence(tmp_path: Path) -> None:
    path, rate = model(), np.array(RATE)
    assert path is not None
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    plain = ort.InferenceSession(path, options)
    state = np.zeros((2, 1, 128), np.float32)
    sure = []
    with bbgrap.LocalCluster(2, cache_dir=tmp_path) as cluster:
        session = bbgrap.InferenceSession(path, cluster=cluster, state="auto")
        assert session.options.state == (("state", "stateN"),)
        with session.sequence({"state": state}) as sequence:
            for chunk in chunks():
                want, state = plain.run(None, {"input": chunk, "sr": rate, "state": state})
                (got,) = sequence.run(None, {"input": chunk, "sr": rate})
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
                sure.append(float(want[0, 0]))
    assert len(sure) == SECONDS * RATE // CHUNK
    assert max(sure) > 0.5 > min(sure)  # it hears something, and not always

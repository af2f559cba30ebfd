"""Machines with little room on disk: `--state-size` and `--cache-size`, by real processes."""

import numpy as np
import onnxruntime as ort
import pytest

import bbgrap
from benchmarks.machines import COORDINATOR, machines_at
from benchmarks.tasks import matrix_model
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

MIB, SIZE, MODELS = 1 << 20, 400, 6


def bytes_of(folder, pattern):
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


def test_models_that_have_no_room_on_disk_answer_all_the_same(tmp_path):
    models = [matrix_model(f"m{number}", SIZE, number) for number in range(MODELS)]
    x = np.random.default_rng(0).normal(size=(1, SIZE)).astype(np.float32)
    plain = [ort.InferenceSession(model).run(None, {"x": x})[0] for model in models]
    assert min(map(len, models)) * MODELS > 3 * MIB
    options = {COORDINATOR: ("--state-size", "2"), "a": ("--cache-size", "1")}
    with machines_at(tmp_path, None, ("a",), options=options) as machines, machines.connect() as connection:
        sessions = [bbgrap.InferenceSession(model, cluster=connection) for model in models]

        def all_answer():
            for session, expected in zip(sessions, plain, strict=True):
                np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-5)

        all_answer()
        assert bytes_of(machines.folder(COORDINATOR) / "models", "*") <= MIB
        assert bytes_of(machines.folder("a"), "**/*.npy") <= MIB
        machines.kill("a")
        machines.start("a")
        all_answer()
        machines.kill(COORDINATOR)
        machines.kill("a")
        machines.start(COORDINATOR)
        machines.wait_coordinator()
        machines.start("a")
        all_answer()
        until(lambda: bytes_of(machines.folder("a"), "**/*.npy") <= MIB, 10)

"""What does a request of a sequence cost above plain onnxruntime that keeps the state itself?

    p50 of one chunk after the other, in turns: plain onnxruntime on one thread, and a sequence on a cluster of this machine;
    bound: 1.2 ms more. The model is zoo:voice, or Silero VAD (`python -m benchmarks.sequences .../silero_vad.onnx`).

Client, coordinator and agents share this machine: on a busy one each hop waits for a core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

import bbgrap
from bbgrap.zoo import materialize

BOUND_MS = 1.2
STATE = (2, 1, 128)


def main() -> int:
    """Measure, print, and fail if the bound is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="Silero VAD's file; default: zoo:voice")
    parser.add_argument("--chunks", type=int, default=1875, help="chunks of 32 ms; default: a minute")
    parser.add_argument("--json", action="store_true", help="print the figures for programs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.model or materialize("voice", Path(folder))
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        plain = ort.InferenceSession(path, options)
        constant = {"sr": np.array(16_000)} if any(arg.name == "sr" for arg in plain.get_inputs()) else {}
        sound = np.random.default_rng(0).standard_normal((given.chunks, 1, 576 if constant else 512)).astype(np.float32)
        state, times = np.zeros(STATE, np.float32), ([], [])  # type: tuple[list[float], list[float]]
        with bbgrap.LocalCluster(1) as cluster:
            session = bbgrap.InferenceSession(path, cluster=cluster, state="auto")
            with session.sequence({"state": state}) as sequence:
                for chunk in sound:
                    feed = {"input": chunk, **constant}
                    began = time.perf_counter()
                    want, state = plain.run(["output", "stateN"], {**feed, "state": state})
                    between = time.perf_counter()
                    (got,) = sequence.run(["output"], feed)
                    times[1].append(time.perf_counter() - between)
                    times[0].append(between - began)
                    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        alone, there = (1e3 * statistics.median(series[100:]) for series in times)
        load = os.getloadavg()[0]
        if given.json:
            print(json.dumps({"chunks": given.chunks, "load": load, "onnxruntime_ms": alone, "sequence_ms": there, "bound_ms": BOUND_MS}))
        else:
            print(f"{given.chunks} chunks, load {load:.1f}: onnxruntime {alone:.2f} ms, sequence {there:.2f} ms, {there - alone:+.2f} ms")
        return int(there - alone > BOUND_MS)


if __name__ == "__main__":
    raise SystemExit(main())

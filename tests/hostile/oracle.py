"""`python -m tests.hostile.oracle MODEL FEEDS OUT`: what plain onnxruntime answers to a hostile model, in a process of its own."""

from __future__ import annotations

import pickle
import resource
import sys
from pathlib import Path

import onnxruntime as ort

MEMORY = 12 << 30


def main() -> None:
    """Run the model and write its answers; an error ends this with status 1."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    model, feeds, out = map(Path, sys.argv[1:])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    out.write_bytes(pickle.dumps(session.run(None, pickle.loads(feeds.read_bytes()))))  # noqa: S301 - our own


if __name__ == "__main__":
    main()

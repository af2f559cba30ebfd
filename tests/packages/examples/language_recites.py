"""A language model with a cache that torch exported: it goes on from some beginnings, letter by letter. Its file is the argument.

Every step has a past one longer, so a shape that was never run; the first has none at all.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime
from verse import numbers_of, text_of


def recited(session: onnxruntime.InferenceSession, beginnings: list[str], letters: int) -> list[str]:
    layers, two, _, heads, _, width = session.get_inputs()[1].shape
    past = np.zeros((layers, two, len(beginnings), heads, 0, width), np.float32)
    text = np.stack([numbers_of(beginning) for beginning in beginnings])
    said = [text]
    for _ in range(letters):
        scores, past = session.run(None, {"text": text, "past": past})
        text = scores[:, -1:].argmax(-1)
        said.append(text)
    return [text_of(numbers) for numbers in np.concatenate(said, 1).tolist()]


def main() -> None:
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    alone = recited(session, ["The Owl and "], 50)
    together = recited(session, ["The Owl", "They to", "Wrapped"], 30)
    print(json.dumps(alone + together))


main()

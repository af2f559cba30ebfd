"""Large JSON: however many ask with it, or for it, one at a time takes the memory for it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bbgrap.serving import http_bodies, infer_request
from tests.serving.clients import json_body

NUMBERS = np.full((1 << 18) + 1, 1.0, np.float32)


def taken(_):
    body = json_body({"x": NUMBERS})
    array = http_bodies.parse_infer(body, len(body)).feed()["x"]
    text, _ = http_bodies.answer_body("model", "1", infer_request.InferRequest("", None, None, (), (), binary=False), [("y", array)])
    return array, text


@pytest.mark.parametrize(("module", "name"), [(infer_request, "of_list"), (http_bodies, "to_list")])
def test_one_at_a_time_is_made_into_arrays_or_of_them(monkeypatch, module, name):
    """16 clients with 24 MB each took 5.4 GB, and nobody else was answered for a minute."""
    lock, convert, most, now = threading.Lock(), getattr(module, name), 0, 0

    def watched(*given):
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        converted = convert(*given)
        with lock:
            now -= 1
        return converted

    monkeypatch.setattr(module, name, watched)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(taken, range(4)))
    assert most == 1
    for array, (text,) in answers:
        np.testing.assert_array_equal(array, NUMBERS)
        assert text.endswith(b"1.0]}]}")

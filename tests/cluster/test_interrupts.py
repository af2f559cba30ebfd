"""Programs that are interrupted while they wait for an answer go on with the connection they have."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = """
import random, signal, sys, threading, time
import numpy as np
import bbgrap
from tests.cluster import tiny

def interrupt(*_):
    raise KeyboardInterrupt

def run():
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], tiny.expected(x))

sys.unraisablehook = lambda _: None  # some interrupts meet a destructor, which ends well all the same
signal.signal(signal.SIGALRM, interrupt)
when, interrupted, x = random.Random(3), 0, np.ones((8, 4), np.float32)
with bbgrap.connect(sys.argv[1]) as connection:
    session = bbgrap.InferenceSession(tiny.model_bytes(), cluster=connection)
    for _ in range(20):
        run()
    began = time.perf_counter()
    for _ in range(50):
        run()
    usual = (time.perf_counter() - began) / 50
    for _ in range(int(sys.argv[2])):
        try:
            signal.setitimer(signal.ITIMER_REAL, when.uniform(0.02, 1.0) * usual)
            run()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        other = threading.Thread(target=run, daemon=True)  # it would wait for a lock that is held
        other.start()
        other.join(20)
        assert not other.is_alive(), interrupted
print(interrupted)
"""


@pytest.mark.broad
def test_whenever_a_request_is_interrupted_the_next_one_is_answered(pair):
    """The lock stayed held, or the connection was led by nobody."""
    command = [sys.executable, "-c", PROGRAM, pair.address, "4000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, int(done.stdout or 0) > 1000) == (0, True), done.stderr[-2000:]

"""A kernel is ended for the request that is meant, and for no other one."""

import threading
from collections import Counter

import numpy as np
import pytest
from bbgrap_agent.running_kernel import KernelStoppedError, RunningKernel

from bbgrap.engine.session_call import caller
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ExecutionError
from tests.hostile_models import endless

X = [np.ones(4, np.float32)]


@pytest.fixture
def compute():
    """Never ends; as a deployment, it says what onnxruntime says in an error of its own."""
    call = caller(make_session(endless().SerializeToString(), threads=1), ["x"], ["y"])

    def run(segment, inputs):
        assert segment == 0
        try:
            return call(inputs)
        except Exception as error:
            raise ExecutionError(str(error)) from error

    return run


def test_the_kernel_of_a_request_that_is_meant_ends_and_no_other_one(compute):
    kernel, done = RunningKernel(), threading.Event()
    asked = Counter()

    def stop():
        while not done.wait(0.02):
            kernel.stop(lambda key: asked.update([key]) or asked[key] == 5)

    thread = threading.Thread(target=stop)
    thread.start()
    for request in (1, 2):
        with pytest.raises(KernelStoppedError):
            kernel.stoppable(compute, (1, request))(0, X)
    done.set()
    thread.join()
    assert all(asked[1, request] >= 5 for request in (1, 2)), "it was not meant before"
    kernel.stop(lambda key: pytest.fail(f"{key} runs no more"))


def test_errors_of_kernels_stay_what_they_are():
    def broken(segment, inputs):
        raise ExecutionError(f"segment {segment}: broken")

    with pytest.raises(ExecutionError, match="segment 0: broken") as raised:
        RunningKernel().stoppable(broken, (1, 1))(0, X)
    assert not isinstance(raised.value, KernelStoppedError)

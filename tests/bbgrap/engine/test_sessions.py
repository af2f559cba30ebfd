import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from bbgrap import zoo
from bbgrap.engine.load import load_graph
from bbgrap.engine.reference import Reference
from bbgrap.engine.sessions import make_session, reason_of, usable_cores
from bbgrap.errors import ExecutionError, InputError, ModelError
from bbgrap.graph import DType
from bbgrap.graph.onnx_io import write_graph
from tests.onnx_models import model_of

X = np.random.default_rng(0).standard_normal((1, 3, 32, 32), np.float32)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return zoo.materialize("tiny", tmp_path_factory.mktemp("zoo"))


@pytest.mark.parametrize("threads", [1, 2, None])
@pytest.mark.parametrize("spinning", [True, False, 100])
def test_answers_do_not_depend_on_threads_or_spinning(tiny, threads, spinning):
    (expected,) = Reference(tiny).run({"input": X})
    (got,) = make_session(tiny, threads=threads, spinning=spinning).run(None, {"input": X})
    np.testing.assert_array_equal(got, expected)


def test_detached_weights_give_the_same_bits_and_are_kept_alive(tiny):
    graph = load_graph(tiny, {"input": X.shape})
    inline, detached = (write_graph(graph, weights=form) for form in ("inline", "detached"))
    assert detached.detached
    session = make_session(detached.data, weights={name: graph.weights[name].array.copy() for name in detached.detached}, threads=1)
    (expected,) = make_session(inline.data, threads=1).run(None, {"input": X})
    del graph
    (got,) = session.run(None, {"input": X})
    np.testing.assert_array_equal(got, expected)


def test_unoptimised_models_run(tiny):
    (expected,) = Reference(tiny).run({"input": X})
    (got,) = make_session(tiny, threads=1, optimize=False).run(None, {"input": X})
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_one_thread_means_the_calling_one(tiny):
    before = threading.active_count(), _kernel_threads()
    make_session(tiny, threads=1).run(None, {"input": X})
    assert (threading.active_count(), _kernel_threads()) == before


def test_a_model_that_cannot_be_loaded_is_an_error_and_prints_nothing(capfd):
    with pytest.raises(ModelError, match="cannot load the model"):
        make_session(b"nonsense", threads=1)
    assert capfd.readouterr() == ("", "")


def test_a_reason_that_repeats_long_names_is_short():
    long = "y" * 50_000
    model = model_of([helper.make_node("Nothing", ["x"], [long])], {"x": [1]}, {long: [1]})
    with pytest.raises(ModelError, match="cannot load the model") as raised:
        make_session(model.SerializeToString(), threads=1)
    assert len(str(raised.value)) < 1000


def test_a_reason_is_what_was_found_and_not_where_in_onnxruntime():
    """A node with an older onnxruntime refused an opset: its reason began with 300 letters of a signature, and was cut off in logs."""
    newer = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}, {"y": [1]}, opset=99)
    with pytest.raises(ModelError, match="Opset 99 is under development") as raised:
        make_session(newer.SerializeToString(), threads=1)
    assert "onnxruntime_src" not in str(raised.value)
    assert "ValidateOpsetForDomain" not in str(raised.value)


@pytest.mark.parametrize(
    "place",
    [
        "/onnxruntime_src/onnxruntime/core/a.h:570 void onnxruntime::BroadcastIterator::Append(ptrdiff_t, ptrdiff_t)",
        "/onnxruntime_src/onnxruntime/core/a.cc:9 onnxruntime::S onnxruntime::F(std::function<void(int)>, T&) const [with T = float]",
    ],
)
def test_places_in_the_source_of_onnxruntime_are_no_part_of_a_reason(place):
    assert reason_of(ValueError(f"[ONNXRuntimeError] : 1 : FAIL : running Add {place} axis == 1 was false. (3 by 5)")) == (
        "1 : FAIL : running Add axis == 1 was false. (3 by 5)"
    )
    assert reason_of(ValueError("what (x) was: y.cc:5 f(")) == "what (x) was: y.cc:5 f("


def test_the_shared_pool_serves_every_session_of_a_process(tiny):
    program = f"""
import numpy as np
from pathlib import Path
from bbgrap.engine.reference import Reference
from bbgrap.engine.sessions import make_session
x = np.ones((1, 3, 32, 32), np.float32)
path = Path({str(tiny)!r})
before = Reference(path).run({{"input": x}})[0]
shared = [make_session(path, threads=2, shared_pool=True) for _ in range(3)] + [make_session(path, threads=1)]
assert all((s.run(None, {{"input": x}})[0] == before).all() for s in shared)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_usable_cores():
    assert usable_cores() >= 1


def test_reference_names_what_is_wrong(tiny):
    reference = Reference(tiny)
    assert [(i.name, i.dtype, i.shape) for i in reference.inputs] == [("input", DType.FLOAT, ("N", 3, 32, 32))]
    assert [o.shape for o in reference.outputs] == [("N", 10)]
    with pytest.raises(InputError, match="expected input; got wrong"):
        reference.run({"wrong": X})
    with pytest.raises(ExecutionError, match=r"onnxruntime failed: .*input"):
        reference.run({"input": X.astype(np.float64)})


def _kernel_threads():
    with Path("/proc/self/status").open() as status:
        return next(line for line in status if line.startswith("Threads:"))


def test_memory_of_a_large_request_is_given_back():
    program = """
import gc
import numpy as np
import psutil
from onnx import TensorProto, helper
from bbgrap.engine.sessions import give_back_arena, make_session, share_arena

def megabytes():
    return psutil.Process().memory_info().rss >> 20

share_arena()
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
nodes = [helper.make_node("Expand", ["x", "s"], ["e"]), helper.make_node("ReduceSum", ["e"], ["y"], keepdims=0)]
graph = helper.make_graph(nodes, "g", [x], [y], [helper.make_tensor("s", TensorProto.INT64, [2], [100_000, 1])])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
session = make_session(model, threads=1)
session.run(None, {"x": np.ones(10, np.float32)})
small = megabytes()
session.run(None, {"x": np.ones(1000, np.float32)})
large = megabytes()
give_back_arena()
print(small, large, megabytes())
"""
    small, large, after = map(
        int, subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )
    assert large > small + 300
    assert after < small + 50

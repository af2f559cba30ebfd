"""IOBinding and OrtValue: programs that bind memory do the same to both, and find the same in it."""

import weakref

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

import bbgrap
from tests.surface import models

pytestmark = pytest.mark.cluster

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = A[::-1].copy()
WANTED = A + B


@pytest.fixture(params=["onnxruntime", "bbgrap"])
def make(request, cluster):
    """Make a session; what is asserted holds for both."""
    return ort.InferenceSession if request.param == "onnxruntime" else lambda model: bbgrap.InferenceSession(model, cluster=cluster)


@pytest.fixture
def session(make):
    return make(models.add())


def bound(session):
    binding = session.io_binding()
    binding.bind_cpu_input("a", A)
    binding.bind_cpu_input("b", B)
    return binding


def test_arrays_are_bound_and_outputs_copied(session):
    binding = bound(session)
    assert isinstance(binding, ort.IOBinding)
    assert binding.get_outputs() == []
    binding.bind_output("y")
    binding.synchronize_inputs()
    session.run_with_iobinding(binding, ort.RunOptions())
    binding.synchronize_outputs()
    (copied,), (value,), vector = binding.copy_outputs_to_cpu(), binding.get_outputs(), binding.get_outputs_as_ortvaluevector()
    assert isinstance(value, ort.OrtValue)
    assert len(vector) == 1
    for found in (copied, value.numpy(), vector[0].numpy()):
        np.testing.assert_array_equal(found, WANTED)
    copied[:] = 0
    np.testing.assert_array_equal(value.numpy(), WANTED)


def test_a_scalar_stays_one(make):
    total = models.model([models.node("ReduceSum", "a", "y", keepdims=0)], [models.declared("a", ["n", 3])], [models.declared("y", [])])
    session = make(total)
    binding = session.io_binding()
    binding.bind_cpu_input("a", A)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    for value in (*binding.get_outputs(), *session.run_with_ort_values(None, {"a": ort.OrtValue.ortvalue_from_numpy(A)})):
        assert (value.numpy().shape, value.numpy().item()) == ((), A.sum())


@pytest.mark.parametrize("kind", [np.float32, TensorProto.FLOAT])
def test_memory_is_bound_by_address_and_read_and_written_by_each_run(session, kind):
    binding, first, out = session.io_binding(), A.copy(), np.zeros_like(A)
    binding.bind_input("a", "cpu", 0, kind, A.shape, first.ctypes.data)
    binding.bind_input("b", "cpu", 0, kind, A.shape, B.ctypes.data)
    binding.bind_output("y", "cpu", 0, kind, A.shape, out.ctypes.data)
    for _ in range(2):
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(out, first + B)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), out)
        first += 1


def test_values_are_bound_and_written_into(session):
    first, second, out = (ort.OrtValue.ortvalue_from_numpy(each.copy()) for each in (A, B, np.zeros_like(A)))
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", first)
    binding.bind_ortvalue_input("b", second)
    binding.bind_ortvalue_output("y", out)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out.numpy(), WANTED)
    first.update_inplace(B)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), B + B)


def test_what_is_bound_is_kept(session):
    given = A.copy()
    kept, binding = weakref.ref(given), bound(session)
    binding.bind_ortvalue_input("a", ort.OrtValue.ortvalue_from_numpy(given))
    del given
    assert kept() is not None
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], WANTED)


def test_what_is_cleared_is_not_bound(session):
    binding = bound(session)
    with pytest.raises(RuntimeError, match="output"):
        session.run_with_iobinding(binding)
    binding.bind_output("y")
    binding.clear_binding_outputs()
    with pytest.raises(RuntimeError, match="output"):
        session.run_with_iobinding(binding)
    binding.bind_output("y")
    binding.clear_binding_inputs()
    with pytest.raises(RuntimeError):
        session.run_with_iobinding(binding)


def test_faults_are_of_the_same_class(session, make):
    binding, wrong = bound(session), np.zeros((2, 4), np.float32)
    for call in (
        lambda: binding.bind_cpu_input("q", A),
        lambda: binding.bind_cpu_input("a", [[1.0]]),
        lambda: binding.bind_input("a", "cuda", 0, np.float32, A.shape, A.ctypes.data),
        lambda: binding.bind_input("a", "cpu", 0, str, A.shape, A.ctypes.data),
    ):
        with pytest.raises(RuntimeError):
            call()
    for place in ((np.float32, wrong), (np.float64, np.zeros((2, 3)))):
        binding.bind_output("y", "cpu", 0, place[0], place[1].shape, place[1].ctypes.data)
        with pytest.raises(RuntimeError):
            session.run_with_iobinding(binding)
    binding.bind_output("q")
    with pytest.raises(RuntimeError):
        session.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="shape"):
        binding.bind_output("y", "cpu", 0, np.float32, None, wrong.ctypes.data)
    with pytest.raises(ValueError, match="must be used with the session that created it"):
        make(models.add()).run_with_iobinding(binding)


def test_values_in_feeds(session):
    a, b = (ort.OrtValue.ortvalue_from_numpy(each) for each in (A, B))
    (value,) = session.run_with_ort_values(None, {"a": a, "b": b})
    assert isinstance(value, ort.OrtValue)
    np.testing.assert_array_equal(value.numpy(), WANTED)
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": B})[0], WANTED)
    with pytest.raises(AttributeError):
        session.run_with_ort_values(None, {"a": A, "b": B})
    with pytest.raises(ort_state.InvalidArgument):
        session.run(None, {"a": ort.OrtValue.ortvalue_from_numpy(A.astype(np.float64)), "b": B})


def test_vectors_of_values(session):
    feeds, fetches = ort_state.OrtValueVector(), ort_state.OrtValueVector()
    first, second = (np.repeat(each, 100_000, axis=0) for each in (A, B))
    for each in (first, second):
        feeds.push_back(ort.OrtValue.ortvalue_from_numpy(each)._ortvalue)
    device = [ort.OrtDevice.make("cpu", 0)._get_c_device()]
    session.run_with_ortvaluevector(ort.RunOptions(), ["a", "b"], feeds, ["y"], fetches, device)
    assert len(fetches) == 1
    others = [np.full_like(first, 7) for _ in range(8)]  # take the memory that is not held
    np.testing.assert_array_equal(fetches[0].numpy(), first + second)
    assert len(others) == 8


def test_a_value_is_made_by_a_session(session):
    value = session.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu")
    value.update_inplace(A)
    np.testing.assert_array_equal(value.numpy(), A)
    with pytest.raises(RuntimeError):
        session.create_ortvalue_from_shape_and_type([2], np.float32, "cuda")


def test_numbers_that_numpy_lacks(make):
    sizes = [3]
    identity = models.model(
        [models.node("Identity", "a", "y")],
        [models.declared("a", sizes, TensorProto.BFLOAT16)],
        [models.declared("y", sizes, TensorProto.BFLOAT16)],
    )
    numbers = np.array([1, -2, 0.5], ml_dtypes.bfloat16)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(numbers.view(np.uint16), TensorProto.BFLOAT16)
    session = make(identity)
    (result,) = session.run_with_ort_values(["y"], {"a": value})
    assert (result.data_type(), result.shape()) == ("tensor(bfloat16)", [3])
    out = np.zeros(3, np.uint16)
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", result)
    binding.bind_output("y", "cpu", 0, TensorProto.BFLOAT16, [3], out.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out, numbers.view(np.uint16))


def test_what_cannot_be_an_ort_value_is_refused_with_a_reason(cluster):
    pair = helper.make_value_info("y", helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None)))
    session = bbgrap.InferenceSession(
        models.model([models.node("SequenceConstruct", "a a", "y")], [models.declared("a", [2])], [pair]), cluster=cluster
    )
    one = ort.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))
    with pytest.raises(bbgrap.errors.UnsupportedError, match="output 'y': only numbers can be given as an OrtValue, not list"):
        session.run_with_ort_values(None, {"a": one})
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", one)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert [list(each) for each in binding.copy_outputs_to_cpu()[0]] == [[1, 1], [1, 1]]

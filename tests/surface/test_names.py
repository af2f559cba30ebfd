"""Every public name of the installed onnxruntime, and of its sessions, with its signature: there, ours or its own."""

import importlib
import inspect
import pickle
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

import bbgrap.onnxruntime as ort
from bbgrap import errors
from bbgrap.session.ort_errors import speaking_onnxruntime
from tests.surface import models

THEIRS = onnxruntime.InferenceSession
NAMES = sorted(name for name in dir(THEIRS) if not name.startswith("_"))
MODULE = sorted(name for name in dir(onnxruntime) if not name.startswith("_"))


def parameters(function):
    """Return names, kinds and defaults, in order; annotations may differ."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_there_are_names_to_compare():
    assert {"run", "io_binding"} <= set(NAMES)
    assert {"InferenceSession", "RunOptions"} <= set(MODULE)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_a_session_has_onnxruntimes_signature(name):
    assert parameters(getattr(ort.InferenceSession, name)) == parameters(getattr(THEIRS, name))


def test_a_session_is_made_with_onnxruntimes_arguments_and_ours_by_name_only():
    theirs, ours = parameters(THEIRS.__init__), parameters(ort.InferenceSession.__init__)
    assert [p for p in ours if p[1] is not inspect.Parameter.KEYWORD_ONLY] == theirs
    assert all(default is not inspect.Parameter.empty for _, kind, default in ours if kind is inspect.Parameter.KEYWORD_ONLY)


@pytest.mark.parametrize("name", sorted(name for name in dir(onnxruntime.IOBinding) if not name.startswith("_")))
def test_a_name_of_a_binding_has_onnxruntimes_signature(name):
    assert name in vars(ort.IOBinding)
    assert parameters(getattr(ort.IOBinding, name)) == parameters(getattr(onnxruntime.IOBinding, name))


@pytest.mark.parametrize("name", MODULE)
def test_a_name_of_the_module(name):
    assert name in dir(ort)
    if name in ort.OURS:
        assert getattr(ort, name) is ort.OURS[name]
    else:
        assert getattr(ort, name) is getattr(onnxruntime, name)


def test_what_onnxruntime_imports_on_demand():
    assert ort.__version__ == onnxruntime.__version__
    assert ort.datasets is importlib.import_module("onnxruntime.datasets")
    with pytest.raises(AttributeError, match="module 'onnxruntime' has no attribute 'nonsense'"):
        _ = ort.nonsense
    namespace = {}
    exec("from bbgrap.onnxruntime import *", namespace)  # noqa: S102 - that is what is tested
    assert namespace["InferenceSession"] is ort.InferenceSession
    assert set(MODULE) <= set(namespace)


CALLS = {
    "get_inputs": (),
    "get_outputs": (),
    "get_overridable_initializers": (),
    "get_modelmeta": (),
    "get_session_options": (),
    "get_input_memory_infos": (),
    "get_output_memory_infos": (),
    "get_input_epdevices": (),
    "get_tuning_results": (),
    "set_tuning_results": ([],),
    "set_ep_dynamic_options": ({"a": "b"},),
    "end_profiling": (),
    "get_profiling_start_time_ns": (),
    "release_captured_graph": (),
    "enable_fallback": (),
    "disable_fallback": (),
    "set_providers": (["CPUExecutionProvider"], [{"a": "b"}]),
    "get_provider_graph_assignment_info": (),
}


def plain(value):
    """Return what can be compared of an object of onnxruntime."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, str | int | None):
        return value
    shown = {name: getattr(value, name) for name in dir(onnxruntime.NodeArg) if hasattr(value, name) and not name.startswith("_")}
    shown |= {name: getattr(value, name) for name in ("device_id", "allocator_type", "ep_name", "graph_name") if hasattr(value, name)}
    return shown or type(value)


@pytest.mark.cluster
@pytest.mark.parametrize("name", sorted(CALLS.keys() & set(NAMES)))
def test_what_asks_nothing_of_the_cluster_answers_as_onnxruntime(name, cluster):
    answers = []
    for session in (THEIRS(models.described()), ort.InferenceSession(models.described(), cluster=cluster)):
        try:
            answers.append(plain(getattr(session, name)(*CALLS[name])))
        except ort_state.Fail:
            answers.append("fails")
    assert answers[0] == answers[1]


@pytest.mark.cluster
def test_what_programs_look_at(cluster, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(models.add())
    for make in (THEIRS, lambda given: ort.InferenceSession(given, cluster=cluster)):
        assert make(path)._model_path == str(path)
        assert make(str(path))._model_path == str(path)
        session = make(path.read_bytes())
        assert session._model_path is None
        assert session.get_provider_options()[session.get_providers()[0]] == {}

    class Mine(ort.InferenceSession):  # as programs derive theirs
        def __init__(self, path):
            super().__init__(path, providers=["CPUExecutionProvider"], cluster=cluster)

    x = np.ones((1, 3), np.float32)
    assert Mine(path).run(["y"], {"a": x, "b": x})[0].tolist() == [[2, 2, 2]]


@pytest.mark.parametrize(
    ("error", "theirs"),
    [
        (errors.InputError("x"), ort_state.InvalidArgument),
        (errors.UsageError("x"), ValueError),
        (errors.UnsupportedError("x"), ort_state.NotImplemented),
        (errors.ClusterUnavailableError("x"), ort_state.EPFail),
        (errors.ExecutionError("agent 'a': segment 's': 2 : INVALID_ARGUMENT : bad"), ort_state.InvalidArgument),
        (errors.ExecutionError("its deadline of 3 s passed"), ort_state.Fail),
        (errors.ModelError("onnxruntime cannot load the model: 9 : NOT_IMPLEMENTED : no kernel"), ort_state.NotImplemented),
        (errors.ModelError("it has no nodes"), ort_state.InvalidGraph),
        (errors.PlanError("x"), ort_state.Fail),
    ],
)
def test_an_error_is_ours_and_theirs(error, theirs):
    with pytest.raises(theirs) as caught, speaking_onnxruntime(), speaking_onnxruntime():
        raise error
    assert isinstance(caught.value, type(error))
    assert (str(caught.value), type(caught.value).__name__) == (str(error), type(error).__name__)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (type(again), str(again)) == (type(caught.value), str(error))


def test_errors_and_the_command_line_do_without_onnxruntime():
    code = "import sys, bbgrap.errors, bbgrap.cli.main; sys.exit('onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

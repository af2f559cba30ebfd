import gc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from bbgrap.comparison import Rule
from bbgrap.engine.reference import Reference
from bbgrap.engine.spread import NEARBY, VARIANTS, ReferenceAnswers
from tests.judged_models import MODELS
from tests.onnx_models import write_model


@pytest.fixture
def detector(tmp_path):
    model = next(model for model in MODELS if model.name == "detector")
    path = tmp_path / "detector.onnx"
    model.write(path)
    return path, model.draw(np.random.default_rng(0))


def test_what_answers_are_compared_with_is_plain_onnxruntime(detector):
    path, feeds = detector
    for mine, theirs in zip(ReferenceAnswers(path, feeds).expected, Reference(path).run(feeds), strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_every_level_and_number_of_threads_is_asked_once(detector):
    path, feeds = detector
    witnesses = ReferenceAnswers(path, feeds)
    assert len(witnesses.variants()) == len(VARIANTS) == 7
    assert witnesses.variants() is witnesses.variants()
    assert witnesses.exact() is witnesses.exact()


def test_an_answer_at_another_level_is_verified_and_a_changed_one_is_not(detector):
    path, feeds = detector
    witnesses = ReferenceAnswers(path, feeds)
    other = list(witnesses.variants()[0])
    assert witnesses.judge(other).rule in (Rule.ROUNDING, Rule.SPREAD)
    near = other[0].copy()
    near[0, 3, 5] = np.roll(near[0, 3, 5], 1)
    found = witnesses.judge([near, *other[1:]])
    assert not found.verified
    assert found.fault.startswith("output 0: at [0, 3, 5")


def test_a_sigmoid_near_zero_may_be_off_by_what_its_kernel_rounds_and_no_more(tmp_path):
    """A detector of texts that saw none: four of nine answers of its plans were called wrong, by 6e-8 of a probability."""
    path = write_model(tmp_path / "texts.onnx", [helper.make_node("Sigmoid", ["x"], ["y"])], {"x": (64, 64)}, {"y": (64, 64)})
    witnesses = ReferenceAnswers(path, {"x": np.linspace(-30, -9, 64 * 64, dtype=np.float32).reshape(64, 64)})
    for off, verified in ((2.0**-24, True), (2.0**-20, False)):
        got = witnesses.expected[0].copy()
        got[3, 5] += np.float32(off)
        assert witnesses.judge([got]).verified is verified


def kept_by_answers(path):
    """Return the bytes that a process keeps when all answers to a model are there, and whether each is by itself."""
    process, feeds = psutil.Process(), {"x": np.linspace(0.1, 1, 64, dtype=np.float32).reshape(1, 64)}
    before = process.memory_info().rss
    witnesses = ReferenceAnswers(path, feeds)
    answers = [*witnesses.variants(), witnesses.exact()]
    assert len(answers) == 1 + len(VARIANTS)
    gc.collect()
    return process.memory_info().rss - before, all(array.base is None for answer in answers for array in answer)


def test_answers_do_not_keep_what_was_taken_to_compute_them(tmp_path):
    """A separator of music took 15 GB: every answer kept its session's 2 GB, and the system ended the process."""
    large = 64 << 20
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["many"]),
        helper.make_node("Exp", ["many"], ["more"]),
        helper.make_node("ReduceMean", ["more"], ["y"], axes=[0], keepdims=1),
    ]
    path = write_model(tmp_path / "large.onnx", nodes, {"x": (1, 64)}, {"y": (1, 64)}, {"shape": [large // 4 // 64, 64]})
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # what others have freed here stays with this process, or not
        kept, are_copies = fresh.submit(kept_by_answers, path).result()
    # Plain onnxruntime's own session, which goes on, has some of them; the answers have 256 bytes.
    assert kept < 6 * large
    assert are_copies


def test_a_model_that_draws_random_numbers_verifies_nothing(tmp_path):
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    path = write_model(tmp_path / "random.onnx", nodes, {"x": (64,)}, {"y": (64,)})
    witnesses = ReferenceAnswers(path, {"x": np.zeros(64, np.float32)})
    assert witnesses.variants() == ()
    assert witnesses.exact() is None
    assert not witnesses.judge([witnesses.expected[0] + np.float32(0.1)]).verified


@pytest.mark.parametrize(("target", "verified"), [(TensorProto.FLOAT16, True), (TensorProto.FLOAT, False)])
def test_floats_behind_16_bits_may_be_off_by_a_step_of_these(tmp_path, target, verified):
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=target), helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)]
    path = write_model(tmp_path / "narrow.onnx", nodes, {"x": (64,)}, {"y": (64,)})
    witnesses = ReferenceAnswers(path, {"x": np.linspace(1, 2, 64, dtype=np.float32)})
    assert witnesses.judge([witnesses.expected[0] * np.float32(1 + 2**-10)]).verified is verified


def test_inputs_one_bit_off_are_asked_for_where_numbers_are_not_whole(tmp_path):
    path = write_model(tmp_path / "moved.onnx", [helper.make_node("Neg", ["x"], ["y"])], {"x": (4,)}, {"y": (4,)})
    given = np.array([3, 0.1, np.inf, -2.5], np.float32)
    answers = [-answer[0] for answer in ReferenceAnswers(path, {"x": given}).nearby()]
    assert len(answers) == NEARBY
    for number, values in enumerate(zip(*answers, strict=True)):
        value = given[number]
        near = {value} if number in (0, 2) else {np.nextafter(value, np.float32(way)) for way in (-np.inf, np.inf)}
        assert set(values) <= near
    assert len({answer.tobytes() for answer in answers}) > 1
    assert ReferenceAnswers(path, {"x": np.arange(4, dtype=np.float32)}).nearby() == ()


def test_inputs_that_fail_one_bit_off_say_nothing(tmp_path):
    nodes = [
        helper.make_node("Mul", ["x", "ten"], ["tens"]),
        helper.make_node("Floor", ["tens"], ["floor"]),
        helper.make_node("Cast", ["floor"], ["place"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "place"], ["y"]),
    ]
    weights = {"ten": np.float32(10), "table": np.array([1, 2, 3, 4, 5], np.float32)}
    path = write_model(tmp_path / "range.onnx", nodes, {"x": (8,)}, {"y": (8,)}, weights)
    edge = np.nextafter(np.float32(0.5), np.float32(0))
    witnesses = ReferenceAnswers(path, {"x": np.full(8, edge, np.float32)})
    assert witnesses.expected[0].tolist() == [5] * 8
    assert witnesses.nearby() == ()

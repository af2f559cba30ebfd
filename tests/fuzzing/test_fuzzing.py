"""The fuzzer itself: its models reach every described operator, its judge sees planted faults, and a few models of today agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bbgrap.compiler.artifacts import Artifacts
from tests.fuzzing.bounds import Answers, excess, is_shaky, least_float, onnxruntime_answers
from tests.fuzzing.calls import OPERATORS
from tests.fuzzing.campaign import Job, do, judged_of
from tests.fuzzing.configurations import ALL, Configuration, chosen
from tests.fuzzing.dying import die
from tests.fuzzing.faults import lose_a_partial_sum, send_the_row_before, shift_pads
from tests.fuzzing.generators import operator_of, random_sample
from tests.fuzzing.judge import Finding, judge
from tests.fuzzing.minimise import Failure, minimised
from tests.fuzzing.samples import Sample, read_sample
from tests.fuzzing.sources import Folder, source_of
from tests.fuzzing.workers import Workers
from tests.onnx_models import model_of

SEEDS = range(420, 428)
"""A few models for the default suite; `make fuzz` runs thousands."""

FOR_OPERATOR = 12
"""Seeds of one operator that are looked at before it counts as out of reach."""

AT_LENGTH = 3000
"""Seeds that `make test-slow` looks at."""

ROWS, INPUTS = Configuration("bbgrap", "rows", 2), Configuration("bbgrap", "inputs", 2)


def convolutions() -> Sample:
    """Return two convolutions in a row: by rows they exchange halos, by inputs sums are partial."""
    random = np.random.default_rng(1)
    x, w, v = (random.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 11, 9), (4, 4, 3, 3), (4, 4, 3, 3)))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], name="first"),
        helper.make_node("Conv", ["a", "v"], ["y"], pads=[1, 1, 1, 1], name="second"),
    ]
    model = model_of(nodes, {"x": x.shape}, {"y": None}, {"w": w, "v": v}, opset=18)
    return Sample("convolutions", model.SerializeToString(), {"x": x})


def operators_in(sample: Sample) -> set[tuple[str, str]]:
    return {(node.domain, node.op_type) for node in onnx.load_from_string(sample.model).graph.node}


def unreached(operators: tuple[tuple[str, str], ...], progress: Callable[[str], None]) -> list[tuple[str, str]]:
    """Return the operators that none of their first seeds has in its model."""
    left = []
    for operator in operators:
        progress(":".join(operator))
        first = OPERATORS.index(operator)
        seeds = (first + turn * len(OPERATORS) for turn in range(FOR_OPERATOR))
        if not any(operator in operators_in(random_sample(seed)) for seed in seeds):
            left.append(operator)
    return left


@pytest.mark.broad
@pytest.mark.timeout(120)
def test_every_described_operator_is_reached() -> None:
    (ended,) = Workers(unreached, 1, 120).run(iter([OPERATORS]))
    assert not ended.reason, f"{ended.doing}: {ended.reason}"
    assert ended.result == []


def has_its_operator(seed: int, progress: Callable[[str], None]) -> bool:
    progress(f"seed {seed}")
    return operator_of(seed) in operators_in(random_sample(seed))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_most_seeds_reach_their_operator() -> None:
    ends = list(Workers(has_its_operator, 1).run(iter(range(AT_LENGTH))))
    assert np.mean([ended.result is True for ended in ends]) > 0.9
    assert sum(bool(ended.reason) for ended in ends) < AT_LENGTH / 500, "few models end the process while they are made"


def test_equal_seeds_give_equal_models() -> None:
    one, two = random_sample(7), random_sample(7)
    assert one.model == two.model
    assert all(np.array_equal(one.feeds[name], two.feeds[name], equal_nan=True) for name in one.feeds)


def test_a_folder_is_a_source(tmp_path: Path) -> None:
    for seed, name in ((7, "second"), (8, "first")):
        sample = random_sample(seed)
        Sample(name, sample.model, sample.feeds).write(tmp_path)
    (tmp_path / "without_inputs.onnx").write_bytes(b"")
    folder = source_of(str(tmp_path))
    assert isinstance(folder, Folder)
    assert [file.stem for file in folder.files] == ["first", "second"]
    assert folder.sample(1).model == random_sample(7).model
    judged = do(Job(folder.name, 0), lambda _: None)
    assert judged.verdict.name == "first"
    assert judged.verdict.kinds == {"agrees"}
    with pytest.raises(ValueError, match="source 'nowhere': expected a folder or one of own, "):
        source_of("nowhere")


@pytest.mark.timeout(120)
def test_random_models_agree_with_onnxruntime() -> None:
    jobs = (Job("own", seed) for seed in SEEDS)
    verdicts = [judged_of(ended).verdict for ended in Workers(do, 1).run(jobs)]
    assert not [f"{verdict.name}: {fault}" for verdict in verdicts for fault in verdict.faults]
    run = [verdict for verdict in verdicts if "agrees" in verdict.kinds]
    assert len(run) >= 0.8 * len(SEEDS), "most seeds must give models that run"


@pytest.mark.parametrize(
    ("plant", "configuration"),
    [(shift_pads, ROWS), (send_the_row_before, ROWS), (lose_a_partial_sum, INPUTS)],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_judge_sees_a_planted_fault(plant: Callable[[Artifacts], Artifacts], configuration: Configuration) -> None:
    sample = convolutions()
    assert judge(sample, [configuration]).kinds == {"agrees"}
    assert judge(sample, [configuration], alter=plant).kinds == {"mismatch"}


def test_judge_takes_an_error_of_any_kind_as_a_crash() -> None:
    def broken(artifacts: Artifacts) -> Artifacts:
        raise KeyError("nothing")

    (finding,) = judge(convolutions(), [ROWS], alter=broken).findings
    assert finding.kind == "crash"
    assert finding.where.startswith("KeyError")


@pytest.mark.parametrize(
    ("got", "agrees"),
    [
        (np.array([1.0, np.inf, np.nan], np.float32), True),
        (np.array([1.0 + 5e-6, np.inf, np.nan], np.float32), True),
        (np.array([1.0 + 5e-5, np.inf, np.nan], np.float32), False),
        (np.array([1.0, -np.inf, np.nan], np.float32), False),
        (np.array([1.0, np.inf, 0], np.float32), False),
        (np.array([1.0, np.inf, np.nan], np.float64), False),
        (np.array([[1.0, np.inf, np.nan]], np.float32), False),
    ],
    ids=str,
)
def test_bound_on_floats(got: np.ndarray, agrees: bool) -> None:
    plain = np.array([1.0, np.inf, np.nan], np.float32)
    assert (excess([got], Answers([plain], ([plain],)))[0] <= 1) == agrees


def test_bound_widens_with_what_onnxruntime_differs_from_itself() -> None:
    plain, other, got = (np.array([value], np.float32) for value in (1.0, 1.001, 1.003))
    assert excess([got], Answers([plain], ([plain],)))[0] > 1
    assert excess([got], Answers([plain], ([other],)))[0] <= 1


def test_bound_is_that_of_float16_where_a_model_has_it_inside() -> None:
    plain, got = np.array([1.0], np.float32), np.array([1.001], np.float32)
    assert excess([got], Answers([plain], ([plain],), least_bytes=4))[0] > 1
    assert excess([got], Answers([plain], ([plain],), least_bytes=2))[0] <= 1


def test_narrowest_float_of_a_model_is_found_behind_a_cast() -> None:
    model = onnx.load_from_string(convolutions().model)
    assert least_float(model.SerializeToString()) == 4
    model.graph.node.append(helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT16))
    assert least_float(model.SerializeToString()) == 2


def test_answers_between_which_a_last_bit_decides_are_shaky() -> None:
    x = np.array([1 / 3], np.float32)
    nodes = [helper.make_node("Mul", ["x", "three"], ["a"]), helper.make_node("Floor", ["a"], ["y"])]
    model = model_of(nodes, {"x": [1]}, {"y": [1]}, {"three": np.array([3], np.float32)}, opset=18).SerializeToString()
    answers = onnxruntime_answers(model, {"x": x})
    assert answers.plain[0].tolist() == [1]
    assert is_shaky(model, {"x": x}, [np.array([0], np.float32)], answers)
    assert not is_shaky(model, {"x": x}, [np.array([9], np.float32)], answers)


def test_maps_of_probabilities_are_compared_as_numbers() -> None:
    plain = [{0: 0.25, 1: 0.75}]
    assert excess([[{0: 0.25, 1: 0.7500001}]], Answers([plain], ()))[0] <= 1
    assert excess([[{0: 0.25, 1: 0.76}]], Answers([plain], ()))[0] > 1
    assert excess([[{0: 0.25, 2: 0.75}]], Answers([plain], ()))[0] > 1


def test_integers_must_be_equal_where_onnxruntime_agrees_with_itself() -> None:
    plain, other, got = np.array([1, 2, 3]), np.array([1, 2, 4]), np.array([1, 2, 5])
    assert excess([got], Answers([plain], ([other],)))[0] <= 1
    assert excess([got], Answers([plain], ([plain],)))[0] > 1


def test_onnxruntime_answers_in_several_ways() -> None:
    sample = convolutions()
    answers = onnxruntime_answers(sample.model, sample.feeds)
    assert len(answers.others) == 4
    assert excess(answers.others[0], answers)[0] <= 1


def test_every_choice_of_configurations_is_among_all() -> None:
    assert all(configuration in ALL for seed in range(50) for configuration in chosen(seed))
    assert {c.planner for seed in range(200) for c in chosen(seed)} == {c.planner for c in ALL}


def test_a_process_that_dies_costs_one_job() -> None:
    ends = sorted(Workers(die, 1).run(iter(range(3))), key=lambda ended: ended.job)
    assert [ended.result for ended in ends] == [0, None, 2]
    assert ends[1].doing == "number 1"
    assert "ended with" in ends[1].reason


def test_minimising_keeps_the_failure_and_drops_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = convolutions()
    monkeypatch.setattr("tests.fuzzing.minimise.judge", partial(judge, alter=shift_pads))
    small = minimised(Failure(sample, ROWS, Finding("mismatch", ROWS.label, "other values by bbgrap")))
    again = read_sample(small.write(tmp_path))
    assert len(onnx.load_from_string(again.model).graph.node) == 1
    assert judge(again, [ROWS], alter=shift_pads).kinds == {"mismatch"}

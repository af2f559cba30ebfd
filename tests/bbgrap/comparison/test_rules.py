import numpy as np
import pytest

from bbgrap.comparison import FURTHER, SPREAD, Judge, Rule, compare, judge_output

RANDOM = np.random.default_rng(0)
MAP = RANDOM.standard_normal((1, 8, 16, 16)).astype(np.float32)


class Known:
    """Evidence that is given; counts how often it is asked."""

    def __init__(self, variants=(), exact=None, steps=(0.0, 0.0), nearby=(), grains=(0.0, 0.0)):
        self.answers, self.double, self.steps, self.moved, self.grains, self.asked = variants, exact, steps, nearby, grains, 0

    def variants(self):
        self.asked += 1
        return self.answers

    def nearby(self):
        self.asked += 1
        return self.moved

    def exact(self):
        self.asked += 1
        return self.double

    def step(self, output):
        return self.steps[output]

    def grain(self, output):
        return self.grains[output]


def rule_of(got, expected, variants=(), exact=None):
    return judge_output("output", np.asarray(got), np.asarray(expected), [np.asarray(v) for v in variants], exact).rule


def test_rounding_is_that_of_the_magnitudes_around_an_element():
    expected = MAP.copy()
    expected[0, 0] *= 1000
    got = expected.copy()
    got[0, 0, 3, 3] += 1e-3
    assert rule_of(got, expected) is Rule.ROUNDING
    got = expected.copy()
    got[0, 1, 3, 3] += 1e-3
    assert rule_of(got, expected) is Rule.NONE


def test_what_onnxruntime_answers_at_another_level_is_an_answer():
    assert rule_of(MAP + np.float32(0.1), MAP, [MAP, MAP + np.float32(0.1)]) is Rule.SPREAD


@pytest.mark.parametrize(("times", "rule"), [(0.9 * SPREAD, Rule.SPREAD), (1.2 * SPREAD, Rule.NONE)])
def test_the_spread_is_allowed_a_few_times(times, rule):
    noise = 1e-3 * RANDOM.uniform(-1, 1, MAP.shape).astype(np.float32)
    other = 1e-3 * RANDOM.uniform(-1, 1, MAP.shape).astype(np.float32)
    assert rule_of(MAP + np.float32(times) * other, MAP, [MAP + noise]) is rule


@pytest.mark.parametrize(("times", "rule"), [(0.9 * FURTHER, Rule.FLOAT64), (1.2 * FURTHER, Rule.NONE)])
def test_an_answer_may_be_a_few_times_further_from_float64_than_onnxruntime(times, rule):
    exact = MAP.astype(np.float64)
    noise, other = (1e-3 * RANDOM.uniform(-1, 1, MAP.shape) for _ in range(2))
    assert rule_of((exact + times * other).astype(np.float32), (exact + noise).astype(np.float32), (), exact) is rule


def test_a_fault_in_one_output_is_not_excused_by_the_spread_of_another():
    got, expected = [MAP, MAP + np.float32(1e-3)], [MAP, MAP]
    found = compare(got, expected, evidence=Known([[MAP + np.float32(1), MAP]]))
    assert not found.verified
    assert found.fault.startswith("output 1: at [")


def test_integers_may_change_only_where_and_as_far_as_onnxruntimes_do():
    expected = np.arange(200)
    tie = expected.copy()
    tie[[10, 11]] = [11, 10]
    assert rule_of(tie, expected) is Rule.NONE
    assert rule_of(tie, expected, [tie]) is Rule.SPREAD
    other = expected.copy()
    other[[50, 51]] = [51, 50]
    assert rule_of(other, expected, [tie]) is Rule.SPREAD
    assert rule_of(expected + 1, expected, [tie]) is Rule.NONE
    other[50] = 199
    assert rule_of(other, expected, [tie]) is Rule.NONE


def test_large_integers_that_differ_by_one_differ():
    expected, first, second = np.array([2**60, 5]), np.array([2**60 + 1, 5]), np.array([2**60, 6])
    assert rule_of(first, expected) is Rule.NONE
    assert rule_of(first, expected, [first]) is Rule.SPREAD
    assert rule_of(second, expected, [first]) is Rule.NONE
    assert rule_of(np.array([-(2**63), 5]), np.array([-(2**63) + 1, 5])) is Rule.NONE


def test_strings_are_those_that_onnxruntime_answers():
    expected, variant = np.array(["cat", "dog"], object), np.array(["cow", "dog"], object)
    assert rule_of(variant, expected) is Rule.NONE
    assert rule_of(variant, expected, [variant]) is Rule.SPREAD
    assert rule_of(np.array(["cow", "hen"], object), expected, [variant]) is Rule.NONE


def test_another_number_of_detections_must_be_one_that_onnxruntime_finds():
    assert rule_of(np.arange(3), np.arange(4)) is Rule.NONE
    assert rule_of(np.arange(3), np.arange(4), [np.arange(3)]) is Rule.SPREAD


def test_infinities_are_those_of_one_of_onnxruntimes_answers():
    expected = MAP.copy()
    expected[0, 0, 0, 0] = np.inf
    got = MAP.copy()
    got[0, 0, 0, 0] = np.nan
    assert rule_of(got, expected, [MAP + np.float32(1e-3)]) is Rule.NONE
    got = expected + np.float32(1e-5)
    got[0, 0, 0, 0] = MAP[0, 0, 0, 0]
    assert rule_of(got, expected, [MAP + np.float32(1e-3)]) is Rule.SPREAD


def test_evidence_is_asked_for_only_where_rounding_does_not_explain():
    evidence = Known([[MAP]])
    assert compare([MAP * np.float32(1 + 2e-6)], [MAP], evidence=evidence).rule is Rule.ROUNDING
    assert evidence.asked == 0
    assert not compare([MAP + np.float32(1)], [MAP], evidence=evidence).verified
    assert evidence.asked == 3


def test_what_was_of_16_bits_on_the_way_is_as_exact_as_these():
    evidence, eps = Known(steps=(2.0**-10, 0.0)), float(np.finfo(np.float16).eps)
    largest = np.abs(MAP).max(axis=(0, 1, 3)).min()
    for times, verified in ((7.5, True), (8.5, False)):
        got = MAP.copy()
        got[0, :, np.abs(MAP).max(axis=(0, 1, 3)).argmin(), 0] += np.float32(times * eps * largest)
        assert compare([got, MAP], [MAP, MAP], evidence=evidence).verified is verified
        assert not compare([MAP, got], [MAP, MAP], evidence=evidence).verified


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_grain_is_allowed_however_small_the_elements_are_and_no_more(dtype):
    evidence, small = Known(grains=(3e-7, 0.0)), (MAP * 1e-6).astype(dtype)
    for off, explained in ((2.9e-7, dtype is np.float32), (3.1e-7, False)):
        got = small.copy()
        got[0, 3, 2, 1] += dtype(off)
        assert compare([got, small], [small, small], evidence=evidence).verified is explained
        assert not compare([small, got], [small, small], evidence=evidence).verified


def test_a_judge_asks_for_evidence_at_the_end_and_returns_the_worst():
    evidence, judge = Known([[MAP + np.float32(1e-3)]]), Judge([MAP])
    for got in (MAP, MAP + np.float32(1e-3), MAP + np.float32(1e-3)):
        judge.count([got])
    assert evidence.asked == 0
    found = judge.verdict(evidence)
    assert found.rule is Rule.SPREAD
    assert found.own_err == pytest.approx(1e-3, rel=1e-3)
    assert found.as_dict()["same_by"] == "spread"
    assert evidence.asked == 2


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule.ROUNDING, "within rounding"),
        (Rule.SPREAD, "within onnxruntime's spread (0.001)"),
        (Rule.FLOAT64, "no further from float64 than onnxruntime (0.001)"),
    ],
)
def test_the_text_says_by_which_rule(rule, said):
    near = {Rule.ROUNDING: Known(), Rule.SPREAD: Known([[MAP + np.float32(1e-3)]]), Rule.FLOAT64: Known([], [MAP + 1e-3])}[rule]
    got = MAP * np.float32(1 + 2e-6) if rule is Rule.ROUNDING else MAP + np.float32(1e-3)
    text = compare([got], [MAP], evidence=near).text
    assert text.startswith("verified against plain onnxruntime: max absolute error")
    assert text.endswith(said)


def test_a_refusal_says_where_and_what_was_expected():
    got = MAP.copy()
    got[0, 1, 2, 3] = 7
    text = compare([got], [MAP]).text
    assert "output 0: at [0, 1, 2, 3] got 7, expected " in text
    assert "bound" in text

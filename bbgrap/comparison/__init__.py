"""Answers of a cluster against those of plain onnxruntime: how far apart they are, and whether that is no fault (`rules`)."""

from bbgrap.comparison.rules import CROWD, FURTHER, LOSSY_TOLERANCE, ROUNDING, SPREAD, OutputVerdict, Rule, judge_output
from bbgrap.comparison.verdict import SAME, Comparison, Evidence, Judge, compare

__all__ = [
    "CROWD",
    "FURTHER",
    "LOSSY_TOLERANCE",
    "ROUNDING",
    "SAME",
    "SPREAD",
    "Comparison",
    "Evidence",
    "Judge",
    "OutputVerdict",
    "Rule",
    "compare",
    "judge_output",
]

"""Answers of a cluster against those of plain onnxruntime: how far apart they are, and whether that is no fault (`law`)."""

from bbgrap.comparison.law import CROWD, FURTHER, LOSSY_TOLERANCE, ROUNDING, SPREAD, Finding, Rule, judge_output
from bbgrap.comparison.verdict import SAME, Comparison, Evidence, Judge, Look, compare

__all__ = [
    "CROWD",
    "FURTHER",
    "LOSSY_TOLERANCE",
    "ROUNDING",
    "SAME",
    "SPREAD",
    "Comparison",
    "Evidence",
    "Finding",
    "Judge",
    "Look",
    "Rule",
    "compare",
    "judge_output",
]

"""Answers of a cluster against those of plain onnxruntime: how far apart they are, and whether that is no fault (`law`)."""

from bbgrap.comparison.law import AGAIN, CROWD, LOSSY_TOLERANCE, ROUNDING, Rule, judge_output
from bbgrap.comparison.verdict import SAME, Comparison, Evidence, Judge, Look, compare

__all__ = [
    "AGAIN",
    "CROWD",
    "LOSSY_TOLERANCE",
    "ROUNDING",
    "SAME",
    "Comparison",
    "Evidence",
    "Judge",
    "Look",
    "Rule",
    "compare",
    "judge_output",
]

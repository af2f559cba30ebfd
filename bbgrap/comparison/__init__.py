"""Answers of a cluster against those of plain onnxruntime: how far apart they are, and whether that is no fault (`rules`)."""

from bbgrap.comparison.rules import FURTHER, SPREAD, Rule, judge_output
from bbgrap.comparison.verdict import SAME, Comparison, Evidence, Judge, compare

__all__ = ["FURTHER", "SAME", "SPREAD", "Comparison", "Evidence", "Judge", "Rule", "compare", "judge_output"]

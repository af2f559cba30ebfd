"""What a check has found: how bad it is, where, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""An error keeps something from working, a warning costs time or certainty, a note explains."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

HERE = "this machine"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; `who` is `HERE`, a node's name, `coordinator`, a model, or two nodes; `about` is the subject in a word or two."""

    severity: Severity
    who: str
    about: str
    found: str
    expected: str
    advice: str


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, the worst first; otherwise as they came."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if there is an error among them, else 0."""
    return int(any(finding.severity == "error" for finding in findings))

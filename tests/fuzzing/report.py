"""What a run over many models found, as text."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzzing.campaign import Tally

COLUMNS = ("models", "not made", "onnxruntime fails", "refused", "run", "all agree", "shaky", "crash", "mismatch")


def table(tallies: Mapping[str, Tally]) -> str:
    """Return one line per source."""
    rows = [["source", *COLUMNS], *([name, *(str(tally.counts[c]) for c in COLUMNS)] for name, tally in tallies.items())]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def causes_text(tallies: Mapping[str, Tally]) -> str:
    """Return the causes, the most frequent first: how many models, the cause, one seed and one configuration."""
    lines = []
    for name, tally in tallies.items():
        for cause, found in sorted(tally.causes.items(), key=lambda item: -len(item[1])):
            seed, finding = found[0]
            lines.append(
                f"{len(found):5} {name}: {cause} (seed {seed}: {tally.names[seed]}, {finding.configuration}; {finding.words[:160]})"
            )
    return "\n".join(lines)

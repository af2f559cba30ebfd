"""What a session tells of a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bbgrap.protocol.client_messages import ModelPrepared


class PreparedPlan:
    """What was planned for one combination of input shapes.

    `report` is the object that `bbgrap plan --json` prints; `agents` are the names of its devices, in order. `is_current` is whether
    requests have been answered by nobody else since.
    """

    def __init__(self, answer: ModelPrepared, *, was_waited_for: bool = True) -> None:
        self.is_current = was_waited_for
        self.was_waited_for = was_waited_for
        self.key = answer.plan
        self.epoch = answer.epoch
        self.agents = answer.agents
        self.report: Mapping[str, Any] = json.loads(answer.report)

    def summary(self) -> str:
        """Return a few lines for people."""
        lines = [f"{self.report.get('planner', 'plan')} on {len(self.agents)} nodes: {', '.join(self.agents)}"]
        times = {key: self.report.get(key) for key in ("predicted_ms", "predicted_single_node_ms")}
        lines += [f"{key.removesuffix('_ms').replace('_', ' ')}: {ms:.2f} ms" for key, ms in times.items() if isinstance(ms, int | float)]
        for stage in ("initial", "optimized"):
            counts = self.report.get(stage)
            if isinstance(counts, Mapping):
                lines.append(f"{stage}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items() if isinstance(count, int)))
        return "\n".join(lines)

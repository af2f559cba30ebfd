"""A real agent whose kernels add LIE_BY, a number in the environment, to every float that they make.

python -m tests.cluster.lying_agent --join ...      the agent; its workers are started through this module, too
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from bbgrap_agent import main, nanny, worker
from bbgrap_agent.deployment import Deployment

from bbgrap.own_process import python_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bbgrap.graph.types import Array

WORKER = ["-m", "bbgrap_agent.worker"]
"""What a nanny runs, behind the options of Python's that are made to lead here."""
honest = Deployment.compute


def compute(self: Deployment, segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
    lie = float(os.environ["LIE_BY"])
    outputs = honest(self, segment, inputs)
    return [output + output.dtype.type(lie) if output.dtype.kind == "f" else output for output in outputs]


if __name__ == "__main__":
    if sys.argv[1:3] == WORKER:
        Deployment.compute = compute  # type: ignore[method-assign]
        worker.main(sys.argv[3])
    else:
        nanny.python_command = lambda: [*python_command(), "-m", "tests.cluster.lying_agent"]  # type: ignore[attr-defined]
        main.run()

"""Why a worker ended, in words, and whether what it did ended it.

crash signal, out of memory, ended by its nanny   guilty
SIGBUS, with a damaged file of the weights cache  the file
another signal, an exit status                    somebody or something from outside
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from bbgrap.doctor.cgroups import folders_of
from bbgrap.protocol.messages import EndedBy
from bbgrap_agent.progress import WorkerActivity

_CRASHES = frozenset({signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExitCause:
    """How a worker ended; `words` continue a sentence that begins with "the worker", `details` end it."""

    words: str
    ended_by: EndedBy
    details: str = ""


def cause_of(returncode: int, *, ended_because: str = "", oom_kills: int = 0, damaged: str = "") -> ExitCause:
    """Return the cause of an exit.

    Args:
        returncode: As `subprocess` says it: a negative one is a signal.
        ended_because: Why the nanny ended it, if it did.
        oom_kills: How many processes the system has ended meanwhile for want of memory.
        damaged: Which files of its weights cache were damaged, if it was ended by SIGBUS.
    """
    if ended_because:
        return ExitCause(f"was ended by its nanny: {ended_because}", EndedBy.NANNY)
    if returncode >= 0:
        return ExitCause(f"ended with status {returncode}", EndedBy.OUTSIDE)
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    if -returncode == signal.SIGKILL and oom_kills > 0:
        return ExitCause("was ended by the system: out of memory", EndedBy.MEMORY)
    if damaged:
        return ExitCause(f"was ended by {name}", EndedBy.OUTSIDE, details=f"damaged in its weights cache, and loaded anew: {damaged}")
    return ExitCause(f"was ended by {name}", EndedBy.CRASH if -returncode in _CRASHES else EndedBy.OUTSIDE)


def sentence_of(cause: ExitCause, doing: WorkerActivity) -> str:
    """Return the whole reason: the cause, and what the worker did then."""
    did = []
    if doing.request:
        did.append(f"computing request {doing.request} of epoch {doing.epoch}")
    if doing.loading:
        did.append(f"loading epoch {doing.loading}")
    while_it = f" while {' and '.join(did)}" if did else ""
    return f"the worker {cause.words}{while_it}" + (f"; {cause.details}" if cause.details else "")


def oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this one's control group the system has ended for want of memory, ever; 0 where it does not say."""
    for file in ("memory.events", "memory.oom_control"):
        for folder in folders_of("memory", root)[:1]:
            try:
                found = _OOM_KILLS.search((folder / file).read_text())
            except OSError:
                continue
            if found:
                return int(found[1])
    return 0

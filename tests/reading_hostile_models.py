"""`python -m tests.reading_hostile_models NAME...`: reads hostile models and says of each, as a line of JSON, how that went.

A process of its own: some of these models end whoever reads them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bbgrap.engine.load import load_graph
from bbgrap.errors import BbgrapError
from bbgrap.graph.onnx_read import read_model
from bbgrap.planners.bbgrap import all_descriptions
from tests.hostile.large import ALL as HOSTILE

ADDRESS_SPACE = 12 << 30
"""Of the process: a model that asks for more gets an error, and not this machine's memory."""


@dataclass(frozen=True)
class Reading:
    """How reading a model went: what was raised, if anything; seconds; and the bytes that the process grew by, at most."""

    name: str
    how: str
    raised: str
    text: str
    seconds: float
    grown: int
    size: int


def read_all(names: Sequence[str]) -> Iterator[Reading]:
    """Yield two readings of each model; where the process dies, one that names the signal, and a new process reads the next."""
    left = list(names)
    while left:
        command = [sys.executable, "-m", __spec__.name, *left]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        found = [Reading(**json.loads(line)) for line in ended.stdout.splitlines()]
        yield from found
        done = {reading.name for reading in found if reading.how == "load_graph"}
        left = [name for name in left if name not in done]
        if ended.returncode:
            yield Reading(left.pop(0), "either", f"exit status {ended.returncode}", ended.stderr[-500:], 0, 0, 0)


def _read(name: str, how: str, read: Callable[[Path], object], path: Path, size: int) -> Reading:
    before = _peak(anew=True)
    begun, raised, text = time.perf_counter(), "", ""
    try:
        read(path)
    except BbgrapError as error:
        raised, text = type(error).__name__, str(error)
    except Exception as error:  # noqa: BLE001,RUF100 - it is what is asked for
        raised, text = f"not ours: {type(error).__name__}", str(error)
    return Reading(name, how, raised, text[:2000], time.perf_counter() - begun, _peak() - before, size)


def _peak(*, anew: bool = False) -> int:
    """Return the bytes that this process has had at most, since the start or since it was asked `anew`."""
    if anew:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Read the models that were named."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            path = HOSTILE[name].make(Path(folder))
            size = sum(file.stat().st_size for file in path.parent.iterdir())
            for how, read in (("read_model", read_model), ("load_graph", lambda path: all_descriptions(load_graph(path, {})))):
                sys.stdout.write(json.dumps(asdict(_read(name, how, read, path, size))) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Where the coordinator keeps what it measured of models: a JSON file per model, in the state directory.

    {"format": 1, "machines": {"lab-pc": {"typical_s": 0.0041, "factors": {"conv1": 1.08, "": 1.05}}}}

Laws: a file appears complete or not at all; one that is not as expected is ignored, and replaced by the next measurement. Losing them
costs a few measurements, so nothing here ends the coordinator.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from math import inf
from pathlib import Path

from bbgrap.auto.calibrate import LEAST, MOST, MachineFactors
from bbgrap.control.calibrations import MAX_MACHINES, MAX_MODELS
from bbgrap.control.coordinator_events import KeepCalibration
from bbgrap.protocol.limits import is_digest

FORMAT = 1

MAX_FILE_BYTES = 64 << 20
"""64 machines with the factors of a model of some 10,000 nodes take about half of it."""

_log = logging.getLogger("bbgrap.coordinator")


class CalibrationStore:
    """The files of calibrations.

    Invariants: `directory` holds at most `MAX_MODELS` files named by their model's digest.
    """

    def __init__(self, directory: Path) -> None:
        """Use a folder, which is made if it is not there."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for part in directory.glob("*.part"):
            part.unlink(missing_ok=True)
        self._forget_oldest()

    def read(self) -> dict[str, Mapping[str, MachineFactors]]:
        """Return what was measured, by model and machine, the model measured last at the end."""
        found: dict[str, Mapping[str, MachineFactors]] = {}
        for path in self._files():
            try:
                if path.stat().st_size > MAX_FILE_BYTES:
                    raise ValueError(f"expected at most {MAX_FILE_BYTES:,} bytes")
                found[path.stem] = _machines(json.loads(path.read_bytes()))
            except (OSError, ValueError, RecursionError) as error:
                _log.warning("calibration '%s' is ignored: %s", path, error)
        return found

    def keep(self, calibration: KeepCalibration) -> None:
        """Store what was measured of a model."""
        machines = {name: {"typical_s": of.typical_s, "factors": dict(of.factors)} for name, of in calibration.machines.items()}
        path = self.directory / f"{calibration.model}.json"
        draft = path.with_suffix(".part")
        try:
            draft.write_text(json.dumps({"format": FORMAT, "machines": machines}))
            draft.replace(path)
            self._forget_oldest()
        except OSError as error:
            _log.warning("calibration '%s' cannot be stored: %s", path, error)

    def _files(self) -> list[Path]:
        """List the files, the oldest first."""
        files = [path for path in self.directory.glob("*.json") if is_digest(path.stem)]
        return sorted(files, key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _forget_oldest(self) -> None:
        for path in self._files()[:-MAX_MODELS]:
            path.unlink(missing_ok=True)


def _machines(content: object) -> dict[str, MachineFactors]:
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("machines"), dict):
        raise ValueError(f"expected an object with the keys 'format' ({FORMAT}) and 'machines'")
    if len(content["machines"]) > MAX_MACHINES:
        raise ValueError(f"expected at most {MAX_MACHINES} machines, got {len(content['machines'])}")
    return {name: _factors(name, entry) for name, entry in content["machines"].items()}


def _factors(name: str, entry: object) -> MachineFactors:
    typical_s, factors = (entry.get("typical_s"), entry.get("factors")) if isinstance(entry, dict) else (None, None)
    if not isinstance(typical_s, float) or not 0 < typical_s < inf or not isinstance(factors, dict):
        raise ValueError(f"machine '{name}': expected an object with the keys 'typical_s' (seconds) and 'factors'")
    for node, factor in factors.items():
        if not isinstance(factor, float) or not LEAST <= factor <= MOST:
            raise ValueError(f"machine '{name}', node '{node}': expected a factor from {LEAST} to {MOST}, got {str(factor)[:40]}")
    return MachineFactors(typical_s, factors)

import pytest
from bbgrap_agent import machine_probe

from bbgrap.errors import ExecutionError
from tests.messages import AGENT


def test_a_machine_with_too_little_memory_is_not_measured(monkeypatch):
    monkeypatch.setattr(machine_probe, "free_memory_bytes", lambda: machine_probe.NEEDED_BYTES - (1 << 20))
    with pytest.raises(ExecutionError, match="it takes 224 MiB of memory, and 223 MiB are left here"):
        machine_probe.measure_machine(AGENT[0], lambda: None)

"""A process that is held back is seen to be, and its kernels count as long as they last."""

import pytest
from bbgrap_agent import throttling
from bbgrap_agent.throttling import Throttling, gaps_of


@pytest.fixture
def clock(monkeypatch):
    """A clock that runs 1 ms and stands still for the process for another, and so on."""
    ticks = iter(range(10**7))

    def now() -> float:
        running = next(ticks) * 50e-6
        return running + int(running / 1e-3 + 1e-9) * 1e-3

    monkeypatch.setattr(throttling.time, "perf_counter", now)


def test_gaps_are_counted(clock):
    found = gaps_of(0.3)
    assert found.part == pytest.approx(0.5, abs=0.03)
    assert found.stretch_s == pytest.approx(1e-3, rel=0.1)


def test_short_kernels_are_stretched_and_long_ones_have_their_gaps():
    held = Throttling(0.5, 1e-3)
    assert held.sustained(0.2e-3) == pytest.approx(0.4e-3)
    assert held.sustained(5e-3) == 5e-3
    assert Throttling(0.97, 10e-3).sustained(1e-3) == 1e-3


def test_a_process_alone_is_not_held_back(monkeypatch):
    ticks = iter(range(10**7))
    monkeypatch.setattr(throttling.time, "perf_counter", lambda: next(ticks) * 50e-6)
    assert throttling.look(1) == Throttling(1.0, pytest.approx(0.3, rel=0.01))

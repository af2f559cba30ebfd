"""What a worker does, as another process sees it."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from bbgrap_agent.progress import WorkerActivity, WorkerProgress, shared_memory

from tests.bbgrap.transport.locked import forbidden


@pytest.fixture
def both():
    descriptor = shared_memory()
    writer, reader = WorkerProgress(descriptor), WorkerProgress(descriptor)
    os.close(descriptor)
    yield writer, reader
    writer.close()
    reader.close()


def test_kernels_and_loads_are_seen_apart(both):
    writer, reader = both
    assert reader.read() == WorkerActivity()
    writer.begin_load(9)
    seen = []

    def compute(segment, inputs):
        seen.append(reader.read())
        return [segment, *inputs]

    assert writer.shown(compute, 5, 6)(1, [2]) == [1, 2]
    assert (seen[0].epoch, seen[0].request, seen[0].steps, seen[0].loading) == (5, 6, 0, 9)
    assert seen[0].since_ns >= seen[0].loading_since_ns > 0
    writer.end_load()
    after = reader.read()
    assert after == WorkerActivity(steps=1, busy_ns=after.busy_ns)
    writer.begin(5, 7)
    writer.end()
    assert reader.read().busy_ns > after.busy_ns > 0


def test_where_a_sandbox_forbids_memory_a_file_is_shared(monkeypatch):
    monkeypatch.setattr(os, "memfd_create", forbidden)
    descriptor = shared_memory()
    writer, reader = WorkerProgress(descriptor), WorkerProgress(descriptor)
    os.close(descriptor)
    writer.begin_load(9)
    assert reader.read().loading == 9
    writer.close()
    reader.close()


def test_a_kernel_that_fails_has_ended(both):
    writer, reader = both

    def compute(segment, inputs):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        writer.shown(compute, 5, 6)(0, [])
    assert replace(reader.read(), busy_ns=0) == WorkerActivity(steps=1)


def test_what_a_dead_process_did_is_still_there(both):
    descriptor = shared_memory()
    begun = f"p = WorkerProgress({descriptor}); p.begin(5, 6); p.begin_load(7)"
    script = f"import os; from bbgrap_agent.progress import WorkerProgress; {begun}; os.abort()"
    done = subprocess.run([sys.executable, "-c", script], pass_fds=[descriptor], capture_output=True, check=False)
    assert done.returncode < 0
    reader = WorkerProgress(descriptor)
    os.close(descriptor)
    doing = reader.read()
    assert (doing.epoch, doing.request, doing.loading) == (5, 6, 7)
    reader.close()

"""Why a worker ended."""

import signal

import pytest
from bbgrap_agent.exit_causes import cause_of, oom_kills, sentence_of
from bbgrap_agent.progress import WorkerActivity

from bbgrap.protocol.messages import EndedBy


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL])
def test_crashes_are_the_models_fault(number):
    cause = cause_of(-number)
    assert cause.ended_by is EndedBy.CRASH
    assert sentence_of(cause, WorkerActivity(5, 6)) == f"the worker was ended by {number.name} while computing request 6 of epoch 5"


def test_a_damaged_file_takes_the_blame():
    cause = cause_of(-signal.SIGBUS, damaged="'a.npy': it is gone")
    assert cause.ended_by is EndedBy.OUTSIDE
    assert sentence_of(cause, WorkerActivity(5, 6)) == (
        "the worker was ended by SIGBUS while computing request 6 of epoch 5; "
        "damaged in its weights cache, and loaded anew: 'a.npy': it is gone"
    )


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGTERM, 0, 1, 70])
def test_what_comes_from_outside_is_not(code):
    assert cause_of(code).ended_by is EndedBy.OUTSIDE


def test_out_of_memory_is_told_from_a_kill():
    assert sentence_of(cause_of(-signal.SIGKILL, oom_kills=1), WorkerActivity(loading=3)) == (
        "the worker was ended by the system: out of memory while loading epoch 3"
    )
    assert cause_of(-signal.SIGKILL, oom_kills=1).ended_by is EndedBy.MEMORY
    assert cause_of(-signal.SIGTERM, oom_kills=1).ended_by is EndedBy.OUTSIDE


def test_what_the_nanny_ended_says_why():
    cause = cause_of(-signal.SIGKILL, ended_because="a kernel did not end")
    assert cause.ended_by is EndedBy.NANNY
    assert sentence_of(cause, WorkerActivity()) == "the worker was ended by its nanny: a kernel did not end"


@pytest.mark.parametrize(
    ("line", "folder", "file"),
    [("4:memory:/a/b", "memory/a/b", "memory.oom_control"), ("0::/a/b", "a/b", "memory.events")],
)
def test_the_systems_count_is_read(tmp_path, line, folder, file):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line + "\n")
    assert oom_kills(tmp_path) == 0
    group = tmp_path / "sys/fs/cgroup" / folder
    group.mkdir(parents=True)
    (group / file).write_text("under_oom 0\noom_kill 3\n")
    assert oom_kills(tmp_path) == 3

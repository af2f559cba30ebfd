"""What a worker says of work that fails."""

import errno
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from bbgrap_agent.worker import Worker


@pytest.mark.parametrize(
    ("error", "said", "is_logged"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device", False),
        (MemoryError(), "out of memory", False),
        (KeyError("a bug"), "KeyError: 'a bug'", True),
    ],
)
def test_what_fails_is_answered_and_only_bugs_are_logged_with_their_traceback(error, said, is_logged, caplog):
    answers = []

    def fails():
        raise error

    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.INFO):
        Worker._later(SimpleNamespace(_loader=pool, _say=answers.append), fails, str)
    assert answers == [said]
    assert bool(caplog.records) == is_logged

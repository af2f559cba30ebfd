"""Which signals ask a process to end in order."""

import signal

from bbgrap.stop_signals import stop_signals


def test_a_closed_terminal_ends_what_was_not_started_to_outlast_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
        assert set(stop_signals()) == {signal.SIGTERM, signal.SIGINT}
    finally:
        signal.signal(signal.SIGHUP, before)

"""How the commands of this folder end."""

from __future__ import annotations

from collections.abc import Callable

from bbgrap.cli.output import report_error, say
from bbgrap.errors import BbgrapError


def exit_status(work: Callable[[], int]) -> int:
    """Do a benchmark's work and return its exit status; errors become a line."""
    try:
        return work()
    except BbgrapError as error:
        report_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped")
        return 130

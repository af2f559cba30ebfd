"""The sequences of a model with state that clients have open: requests of one run in the order in which they came.

    sequence_start ──► open ◄── requests, one at a time ── sequence_end ──► answered, then closed
                        └── idle for longest while too many are open, or its state is lost ──► unknown

All of it belongs to the event loop. Law: at most `most` sequences are open, and none ends whose requests run or wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bbgrap.errors import StateLostError
from bbgrap.graph.types import Array
from bbgrap.serving.infer_request import SequenceParameters
from bbgrap.serving.refusals import Refusal, RefusedError, malformed
from bbgrap.session import InferenceSession
from bbgrap.session.sequence import StatefulRuns


@dataclass(eq=False, slots=True)
class _OpenSequence:
    runs: StatefulRuns
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    requests: int = 0
    """That run or wait."""
    answered: int = 0
    """Requests; one that was given up may have run, and is none of the sequence all the same."""
    has_ended: bool = False
    before: tuple[int | str, _OpenSequence] | None = None
    """What makes room for it once its first request is answered, and the name of that."""


@dataclass(frozen=True, slots=True)
class SequenceTurn:
    """What a request runs in."""

    runs: StatefulRuns
    answered: int
    """Requests of the sequence, before it."""


class OpenSequences:
    """The open sequences of one model, the one used least lately first.

    Invariants: `_open` has at most `most` sequences.
    """

    def __init__(self, model: str, session: InferenceSession, initial: Mapping[str, Array], most: int) -> None:
        """Begin without any; at most `most` are open at once, and they begin with `initial` where the model does not say with what."""
        self._model = model
        self._session = session
        self._initial = initial
        self._most = most
        self._open: dict[int | str, _OpenSequence] = {}

    @asynccontextmanager
    async def turn(self, part: SequenceParameters) -> AsyncIterator[SequenceTurn]:
        """Wait until all requests of its sequence that came before have been answered.

        Raises:
            RefusedError: if its sequence is not open and this is not its first request, or too many requests of sequences run.
            StateLostError: if a request in it does; it names the sequence as its client does.
        """
        opened = self._begin(part) if part.is_first else self._find(part)
        opened.requests += 1
        try:
            async with opened.turn:
                if opened.has_ended or not (opened.answered or part.is_first):  # nor has it begun, if its first request failed
                    raise self._unknown(part)
                yield SequenceTurn(opened.runs, opened.answered)
                opened.answered, opened.has_ended = opened.answered + 1, part.is_last
            if opened.before is not None:
                _close(opened.before[1])
                opened.before = None
            if part.is_last:  # and is answered: its thread may have done it after its deadline
                self._forget(part, opened)
                _close(opened)
        except StateLostError as error:
            self._forget(part, opened)
            why = str(error).partition(": ")[2]  # in front is what the session calls it, which may be another one's name here
            raise StateLostError(f"sequence {part.sequence!r} of model '{self._model}': {why}") from error
        finally:
            opened.requests -= 1
            if part.is_first and not opened.answered:
                self._forget(part, opened)
                self._restore(opened)

    def _find(self, part: SequenceParameters) -> _OpenSequence:
        opened = self._open.pop(part.sequence, None)
        if opened is None:
            raise self._unknown(part)
        self._open[part.sequence] = opened
        return opened

    def _unknown(self, part: SequenceParameters) -> RefusedError:
        return malformed(
            f"sequence {part.sequence!r} of model '{self._model}' is not open: begin it with sequence_start; "
            f"beyond {self._most} that are open (--max-sequences), the one that is idle for longest ends"
        )

    def _begin(self, part: SequenceParameters) -> _OpenSequence:
        opened = _OpenSequence(self._session.sequence(self._initial))
        if part.sequence in self._open:
            opened.before = part.sequence, self._open.pop(part.sequence)
            opened.turn = opened.before[1].turn  # what was sent before is answered before
        elif len(self._open) >= self._most:
            idle = next((name for name, other in self._open.items() if not other.requests), None)
            if idle is None:
                raise RefusedError(Refusal.BUSY, f"requests of {self._most} sequences run, no more are begun (--max-sequences)")
            opened.before = idle, self._open.pop(idle)
        self._open[part.sequence] = opened
        return opened

    def _forget(self, part: SequenceParameters, opened: _OpenSequence) -> None:
        if self._open.get(part.sequence) is opened:
            del self._open[part.sequence]

    def _restore(self, failed: _OpenSequence) -> None:
        """Let go on what was to make room for a sequence that has not begun; it is the next one to make room."""
        if failed.before is None:
            return
        name, before = failed.before
        if before.answered and not before.has_ended and name not in self._open and len(self._open) < self._most:
            self._open = {name: before, **self._open}
        else:
            _close(before)


def _close(opened: _OpenSequence) -> None:
    """Close what is open no more, in a thread: that may take a moment."""
    asyncio.get_running_loop().run_in_executor(None, opened.runs.close)

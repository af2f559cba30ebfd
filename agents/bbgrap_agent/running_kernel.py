"""The kernel that the executor's thread computes, which any thread may end: nobody waits for what it makes any more.

onnxruntime looks between two operators whether it is to end; what is in one for long the nanny ends, with its process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnxruntime as ort

from bbgrap.engine.session_call import ended_by
from bbgrap.errors import ExecutionError
from bbgrap.graph.types import Array
from bbgrap.runtime.execution import Kernel
from bbgrap_agent.early_messages import RequestKey


class KernelStoppedError(ExecutionError):
    """A kernel was ended because nobody waits for it."""


class RunningKernel:
    """One kernel at a time.

    Invariants: every kernel has run options of its own, so none is ended that began after the one that was meant.
    """

    def __init__(self) -> None:
        """Start without one."""
        self._now: tuple[RequestKey, ort.RunOptions] | None = None

    def stoppable(self, compute: Kernel, key: RequestKey) -> Kernel:
        """Return a function that computes segments for a request until they are done, or it is ended.

        It raises what `compute` does, and KernelStoppedError if it was ended.
        """

        def run(segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
            options = ort.RunOptions()
            self._now = key, options
            try:
                with ended_by(options):
                    return compute(segment, inputs)
            except ExecutionError as error:
                if options.terminate:
                    raise KernelStoppedError(str(error)) from None
                raise
            finally:
                self._now = None

        return run

    def stop(self, is_unwanted: Callable[[RequestKey], bool]) -> None:
        """End the kernel if the request is unwanted for which it is computed; from any thread."""
        if (now := self._now) is not None and is_unwanted(now[0]):
            now[1].terminate = True

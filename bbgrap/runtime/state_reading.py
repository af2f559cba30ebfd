"""How the state of a sequence is read, where one device has the model whole: it sends what its next request would begin with."""

from __future__ import annotations

from bbgrap.runtime.schedule import LocalPart, LocalReceive, LocalSend, Schedule


def reading_of(further: Schedule) -> tuple[Schedule, Schedule]:
    """Return what a device does whose further requests have this schedule, and what the host does.

    Both ends know the number of the message by it. The device leaves the state as it was, as a further request leaves the next one.
    """
    specs = tuple(further.buffers[buffer] for buffer in further.feeds)
    all_of_them = tuple(range(len(specs)))
    message = 1 + max((step.message for step in further.steps if isinstance(step, LocalSend | LocalReceive)), default=0)
    send = LocalSend(message, further.host, tuple(LocalPart(buffer, None) for buffer in all_of_them))
    device = Schedule(further.device, further.host, specs, (send,), all_of_them, all_of_them)
    return device, Schedule(further.host, further.host, specs, (LocalReceive(message, further.device, all_of_them),), (), all_of_them)

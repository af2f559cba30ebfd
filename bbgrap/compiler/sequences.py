"""A deployment for sequences: one program for a first request, another for those after it, over the same segments.

    first      all inputs come with the request, state among them   ──► leaves state on the agents
    further    state is where the request before has left it        ──► leaves it there again

The numbers of their messages differ, so that a message tells the program it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts
from bbgrap.runtime.joined_requests import JoinedInput
from bbgrap.runtime.schedule import LocalReceive, LocalRun, LocalSend, LocalStep, Schedule


def for_sequences(first: Artifacts, further: Artifacts, joinings: Mapping[str, JoinedInput] | None = None) -> Artifacts:
    """Return a deployment with both programs, and how requests are joined; what both run is shipped once."""
    after = 1 + max(_messages(first), default=-1)
    devices = tuple(_joined(one, other, after) for one, other in zip(first.devices, further.devices, strict=True))
    return Artifacts(devices, first.host, {**further.weights, **first.weights}, _moved(further.host, after, ()), joinings or {})


def _messages(artifacts: Artifacts) -> set[int]:
    schedules = (artifacts.host, *(device.schedule for device in artifacts.devices))
    return {step.message for schedule in schedules for step in schedule.steps if isinstance(step, LocalSend | LocalReceive)}


def _joined(first: DeviceArtifacts, further: DeviceArtifacts, after: int) -> DeviceArtifacts:
    segments = list(first.segments)
    places = []
    for segment in further.segments:
        same = next((n for n, other in enumerate(segments) if replace(segment, name=other.name) == other), len(segments))
        if same == len(segments):
            segments.append(replace(segment, name=f"{segment.name} of further requests"))
        places.append(same)
    return DeviceArtifacts(first.schedule, tuple(segments), _moved(further.schedule, after, tuple(places)))


def _moved(schedule: Schedule, after: int, places: tuple[int, ...]) -> Schedule:
    """Return a schedule with messages numbered from `after` on, and segments at other places."""

    def moved(step: LocalStep) -> LocalStep:
        match step:
            case LocalReceive() | LocalSend():
                return replace(step, message=step.message + after)
            case LocalRun():
                return replace(step, segment=places[step.segment])
            case _:
                return step

    return replace(schedule, steps=tuple(map(moved, schedule.steps)))

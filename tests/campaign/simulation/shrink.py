"""Delta debugging: the shortest story that still fails in the same way."""

from __future__ import annotations

import re
import traceback

from tests.campaign.simulation.story import Story, without
from tests.campaign.simulation.world import World

MAX_TRIES = 400


def play(story: Story) -> list[str]:
    """Play a story; return what must not be, an exception among it."""
    try:
        return World(story).play()
    except Exception:
        return [traceback.format_exc(limit=-4)]


def kind_of(surprise: str) -> str:
    """Return what two failures have in common: their text without numbers and names."""
    return re.sub(r"Use\([^)]*\)|'[^']*'|\[.*|[\d.]+|\b[a-d]\b", "#", surprise)[:120]


def shrink(story: Story) -> tuple[Story, list[str]]:
    """Return a story with as few faults and wishes as can be, and how it fails."""
    found = play(story)
    wanted, tries = kind_of(found[0]), 0

    def fails(candidate: Story) -> list[str]:
        nonlocal tries
        tries += 1
        return [surprise for surprise in play(candidate)[:1] if kind_of(surprise) == wanted]

    step = max(1, story.length // 2)
    while step and tries < MAX_TRIES:
        place, changed = 0, False
        while place < story.length and tries < MAX_TRIES:
            cut = set(range(place, min(place + step, story.length)))
            count = len(story.faults)
            candidate = without(story, {c for c in cut if c < count}, {c - count for c in cut if c >= count})
            if surprises := fails(candidate):
                story, found, changed = candidate, surprises, True
            else:
                place += step
        step = step if changed and step == 1 else step // 2
    return story, found

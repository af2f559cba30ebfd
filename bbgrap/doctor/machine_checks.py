"""What is wrong with one machine, by what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from bbgrap.doctor.findings import Finding, Severity
from bbgrap.observing.text import memory_text
from bbgrap.protocol.inspection import MachineFacts

LEAST_DISK, LITTLE_DISK = 1 << 30, 5 << 30
"""Bytes: below the first no further model may fit, below the second few do. Chosen: ResNet50 takes 0.1 GB, a large model some."""
LEAST_MEMORY, LITTLE_MEMORY = 256 << 20, 1 << 30
"""Bytes: below the first a process may be ended, below the second no further model fits. Chosen."""
MUCH_STOLEN = 0.05
"""Of the time, by a hypervisor: from here on kernels are stopped in their middle often."""
MUCH_THROTTLED = 0.05
"""Of the scheduling periods."""
MUCH_BUSY = 0.25
"""Of the cores, by other programs."""


def check_process(who: str, facts: MachineFacts, option: str) -> Iterator[Finding]:
    """Yield what a process there lacks; `option` chooses another folder for it."""
    yield from _room(who, facts, option)
    yield from _time(who, facts)


def check_machine(who: str, facts: MachineFacts, ours: float) -> Iterator[Finding]:
    """Yield what is true of all processes there; `ours` are the cores that those of bbgrap use."""
    others = facts.busy_cores - ours
    if others > MUCH_BUSY * facts.cores:
        found, most = f"other programs use {others:.1f} of {facts.cores} cores", f"at most {MUCH_BUSY * facts.cores:.1f}"
        advice = "end them, or pin agents to other cores (--cores); until then 'bbgrap profile' and 'bbgrap bench' measure them, too"
        yield Finding("warning", who, "busy", found, most, advice)
    if facts.stolen > MUCH_STOLEN:
        found = f"the hypervisor took {facts.stolen:.0%} of the time"
        advice = "move the virtual machine to a host that is not overbooked, or give it dedicated cores"
        yield Finding("warning", who, "CPU steal", found, f"at most {MUCH_STOLEN:.0%}", advice)


def _room(who: str, facts: MachineFacts, option: str) -> Iterator[Finding]:
    if facts.free_disk_bytes < LITTLE_DISK:
        found, advice = (
            f"{memory_text(facts.free_disk_bytes)} free at {facts.folder}",
            f"make room there, or choose another folder with {option}",
        )
        severity: Severity = "error" if facts.free_disk_bytes < LEAST_DISK else "warning"
        yield Finding(severity, who, "disk", found, f"at least {memory_text(LITTLE_DISK)}", advice)
    if facts.free_memory_bytes < LITTLE_MEMORY:
        found = f"{memory_text(facts.free_memory_bytes)} free of {memory_text(facts.memory_bytes)}"
        advice = "end other programs, raise the container's limit, or divide the weights: --objective memory"
        severity = "error" if facts.free_memory_bytes < LEAST_MEMORY else "warning"
        yield Finding(severity, who, "memory", found, f"at least {memory_text(LITTLE_MEMORY)}", advice)


def _time(who: str, facts: MachineFacts) -> Iterator[Finding]:
    if 0 < facts.quota_cores < facts.usable_cores:
        found = f"its control group leaves {facts.quota_cores:g} of {facts.usable_cores} cores"
        advice = "bind it to cores (--cores, cpuset) instead of a quota: a thread that is stopped in a kernel keeps all nodes waiting"
        yield Finding("warning", who, "CPU quota", found, "whole cores of its own", advice)
    if facts.throttled > MUCH_THROTTLED:
        found = f"its control group was stopped in {facts.throttled:.0%} of its periods"
        advice = "raise its CPU limit, or start the agent with fewer --threads"
        yield Finding("warning", who, "throttled", found, f"at most {MUCH_THROTTLED:.0%}", advice)
    if facts.usable_cores < facts.cores:
        found, advice = f"{facts.usable_cores} of {facts.cores} cores may be used", "nothing, if that is meant (--core, --cores, taskset)"
        yield Finding("note", who, "pinned", found, "as it was started", advice)

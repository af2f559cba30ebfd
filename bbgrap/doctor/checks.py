"""What checks find: how bad it is, where, what was expected, and what to do; and what is wrong with this machine or any other one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bbgrap.doctor.local_facts import LocalFacts, ResolvedHost
from bbgrap.observing.text import memory_text
from bbgrap.protocol.inspection import MachineFacts

Severity = Literal["error", "warning", "note"]
"""An error keeps something from working, a warning costs time or certainty, a note explains."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

HERE = "this machine"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; `who` is `HERE`, a node's name, `coordinator`, a model, or two nodes; `about` is the subject in a word or two."""

    severity: Severity
    who: str
    about: str
    found: str
    expected: str
    advice: str


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, the worst first; otherwise as they came."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if there is an error among them, else 0."""
    return int(any(finding.severity == "error" for finding in findings))


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


LEAST_PYTHON = (3, 11)


def check_here(facts: LocalFacts, *, is_loaded: bool = False) -> Iterator[Finding]:
    """Yield what is wrong; with `is_loaded` agents may work here, whose checks tell who uses the processors."""
    yield from _installation(facts)
    for folder in facts.folders:
        if folder.fault:
            found = f"{folder.path} cannot be written: {folder.fault}"
            yield Finding(
                "error", HERE, f"folder, {folder.what}", found, "a folder that can be written", f"choose another with {folder.option}"
            )
    machine = facts.machine
    yield from check_process(HERE, machine, "--cache-dir")
    if not is_loaded:
        yield from check_machine(HERE, machine, machine.own_cores)
    yield from _names(facts)


def is_loopback(address: str) -> bool:
    """Whether an address leads back to the machine that uses it; names do not."""
    try:
        return ipaddress.ip_address(address.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def _installation(facts: LocalFacts) -> Iterator[Finding]:
    if facts.python < LEAST_PYTHON:
        found, least = (".".join(map(str, version)) for version in (facts.python, LEAST_PYTHON))
        yield Finding("error", HERE, "Python", found, f"{least} or newer", "make the environment anew with a newer Python")
    for package in facts.packages:
        if not package.fits:
            found = f"{package.name} {package.found}" if package.found else f"no {package.name}"
            advice = f"pip install '{package.name}{package.needed}'"
            yield Finding("error", HERE, "package", found, f"{package.name} {package.needed}", advice)
    if facts.installed and facts.installed != facts.version:
        found = f"the code is bbgrap {facts.version}, pip has installed {facts.installed}"
        yield Finding("warning", HERE, "installation", found, "one version", "install it again: pip install .")
    if facts.encoding.lower().replace("-", "") != "utf8":
        found = f"file names are {facts.encoding}"
        yield Finding("warning", HERE, "locale", found, "utf-8", "set LC_ALL=C.UTF-8, or PYTHONUTF8=1")


def _names(facts: LocalFacts) -> Iterator[Finding]:
    own = facts.own_name
    if _leads_back(own):
        found = f"'{own.name}' is {', '.join(own.addresses)} here"
        advice = "give --bind and --advertise an address that others reach, or mend /etc/hosts"
        yield Finding("warning", HERE, "own name", found, "an address of the network", advice)
    elif not own.addresses:
        found = f"'{own.name}' cannot be found: {own.fault}"
        yield Finding("note", HERE, "own name", found, "an address", "name addresses instead in --bind, --join and --advertise")
    there = facts.coordinator
    if there is None:
        if facts.is_listening:
            found = f"something listens at {facts.address} already"
            advice = f"if it is your coordinator: bbgrap doctor --coordinator {facts.address}; else choose another port with --bind"
            yield Finding("warning", HERE, "port", found, "a free port for a coordinator", advice)
        return
    if not there.addresses:
        found = f"host '{there.name}' cannot be found: {there.fault}"
        yield Finding("error", "coordinator", "name", found, "an address", "is its name right? an address does, too")
        return
    if _leads_back(there) and there.name != "localhost" and not is_loopback(there.name):
        found = f"'{there.name}' is {', '.join(there.addresses)} here"
        yield Finding("warning", "coordinator", "name", found, "the address that others use", "use the address, or mend /etc/hosts")
    if not facts.is_listening:
        found = f"nothing takes connections at {facts.address}"
        advice = f"start one there (bbgrap-coordinator --bind {facts.address}), or open the port in its firewall"
        yield Finding("error", "coordinator", "port", found, "a coordinator", advice)


def _leads_back(host: ResolvedHost) -> bool:
    return bool(host.addresses) and all(is_loopback(address) for address in host.addresses)

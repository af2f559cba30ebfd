"""What is wrong on this machine, by the facts of `here`."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from bbgrap.doctor.findings import HERE, Finding
from bbgrap.doctor.local_facts import LocalFacts, ResolvedHost
from bbgrap.doctor.machine_checks import check_machine, check_process

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

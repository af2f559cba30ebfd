"""What is wrong with a cluster, by what its coordinator and agents say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bbgrap.cluster import NodeProfile
from bbgrap.cluster.names import name_order
from bbgrap.cluster.speeds import shares_of
from bbgrap.cluster.types import COORDINATOR
from bbgrap.doctor.checks import Finding, check_machine, check_process, is_loopback
from bbgrap.protocol.addresses import host_of
from bbgrap.protocol.inspection import Inspection, MachineFacts, NodeFacts
from bbgrap.protocol.status_messages import NodeStatus

CLOCKS_APART_S = 1.0
"""Beyond what is not known of them: then lines of two logs cannot be put side by side, and tokens end early."""
SLOW_BYTES_PER_S = 100e6 / 8
"""100 Mbit/s, at which most models are not worth dividing (README)."""
FAR_S = 0.01
"""As long there and back as a segment of most models takes: what is divided over such a link waits more than it computes. Chosen."""
OF_CARD = 0.5
"""Of what its card says, what a link should do."""
UNEQUAL = 0.25
"""Of the fastest node's share: a slower one computes little, and is waited for."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster as a client sees it; `coordinator_host` is the host of the address by which it reached the coordinator.

    `lost` are the agents that are away without having left, and for how many seconds.
    """

    own_version: str
    coordinator_host: str
    coordinator_version: str
    nodes: tuple[NodeStatus, ...]
    inspection: Inspection
    lost: Mapping[str, float] = field(default_factory=dict)


def check_cluster(facts: ClusterFacts) -> Iterator[Finding]:
    """Yield what is wrong."""
    if not facts.nodes:
        yield Finding("error", COORDINATOR, "agents", "none has joined", "at least one", "on each machine: bbgrap-agent --join ADDRESS")
    for name, seconds in facts.lost.items():
        found, advice = f"it has said nothing for {seconds:.0f} s", "is its process stopped or ended, its machine down? start it again"
        yield Finding("warning", name, "lost", found, "heartbeats", advice)
    yield from _versions(facts)
    yield from _reachability(facts)
    yield from _machines(facts)
    yield from _clocks(facts.inspection.nodes)
    yield from _speeds(facts.nodes)
    yield from _links(facts)
    yield from _distances(facts)
    yield from _answers(facts)


def _versions(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.own_version != facts.coordinator_version:
        found = f"this client is bbgrap {facts.own_version}, the coordinator {facts.coordinator_version}"
        yield Finding("warning", COORDINATOR, "version", found, "one version", "install the same bbgrap on both")
    for node in facts.nodes:
        if node.version != facts.coordinator_version:
            found = f"bbgrap {node.version}, the coordinator has {facts.coordinator_version}"
            yield Finding("warning", node.name, "version", found, "one version", "install the same bbgrap on all machines")
    versions: dict[str, list[str]] = defaultdict(list)
    for node in facts.nodes:
        versions[node.onnxruntime].append(node.name)
    if len(versions) > 1:
        found = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(versions.items()))
        advice = "install one version: answers may differ from plan to plan in the last bits"
        yield Finding("warning", "agents", "onnxruntime", found, "one version", advice)


def _reachability(facts: ClusterFacts) -> Iterator[Finding]:
    at = {node.name: node.address for node in facts.nodes}
    pairs = {tuple(sorted((node.name, other), key=name_order)) for node in facts.nodes for other in node.unreachable}
    for pair in sorted(pairs, key=lambda pair: [name_order(name) for name in pair]):
        found = f"they do not reach each other ({', '.join(f'{name} at {at[name]}' for name in pair if name in at)})"
        advice = "open the data ports (--data-port) in both firewalls; is --advertise the address that others use? Is the MTU right?"
        yield Finding("error", " and ".join(pair), "reachability", found, "tensors go both ways", advice)
    hosts = {node.name: host_of(node.address) for node in facts.nodes}
    if not all(is_loopback(host) for host in hosts.values()):
        for name, host in hosts.items():
            if is_loopback(host):
                found, advice = f"it advertises {host}, which is every machine's own", "start it with --advertise ADDRESS"
                yield Finding("error", name, "address", found, "an address that others reach", advice)
    for name in facts.inspection.silent:
        advice = "is the machine overloaded or stopped? its log says more"
        yield Finding("error", name, "silent", "it did not say in time how its machine is", "an answer within a second", advice)


def _machines(facts: ClusterFacts) -> Iterator[Finding]:
    places = {node.name: host_of(node.address) for node in facts.nodes}
    known = [(node.name, places.get(node.name, node.name), node.facts, "--cache-dir") for node in facts.inspection.nodes]
    own: MachineFacts | None = facts.inspection.coordinator
    if own is not None:
        known.append((COORDINATOR, facts.coordinator_host, own, "--state-dir"))
    at: dict[str, list[tuple[str, MachineFacts]]] = defaultdict(list)
    for name, place, machine, option in known:
        yield from check_process(name, machine, option)
        at[place].append((name, machine))
    for place, there in at.items():
        names, first = ", ".join(name for name, _ in there), there[0][1]
        yield from check_machine(names, first, sum(machine.own_cores for _, machine in there))
        threads = sum(node.threads for node in facts.nodes if places[node.name] == place)
        if threads > first.cores:
            found = f"{threads} threads of agents on {first.cores} cores"
            yield Finding("warning", names, "threads", found, "at most a thread per core", "start them with fewer --threads")


def _clocks(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    for node in nodes:
        if abs(node.ahead_s) - node.within_s > CLOCKS_APART_S:
            found = f"its clock is {abs(node.ahead_s):.1f} s {'ahead of' if node.ahead_s > 0 else 'behind'} the coordinator's"
            advice = "set the clocks by NTP (chrony, systemd-timesyncd)"
            yield Finding("warning", node.name, "clock", found, f"within {CLOCKS_APART_S:g} s", advice)


def _speeds(nodes: Sequence[NodeStatus]) -> Iterator[Finding]:
    unknown = [node.name for node in nodes if node.profile is None or not node.profile.work]
    if not nodes:
        return
    if unknown:
        found, advice = f"not measured: {', '.join(unknown)}", "leave the cluster idle for some seconds, or run 'bbgrap profile'"
        yield Finding("note", "agents", "profiles", found, "speeds of every node", advice)
        return
    shares = dict(zip((node.name for node in nodes), shares_of([node.profile or NodeProfile(node.name) for node in nodes]), strict=True))
    best = max(shares, key=lambda name: shares[name], default="")
    for name, share in shares.items():
        if share < UNEQUAL * shares[best]:
            found = f"{share / shares[best]:.0%} of the speed of '{best}'"
            advice = "it adds little: use it for small models or as a spare; is it throttled, busy, or on battery?"
            yield Finding("warning", name, "unequal", found, f"at least {UNEQUAL:.0%} of the fastest node", advice)


def _links(facts: ClusterFacts) -> Iterator[Finding]:
    cards = {node.name: node.facts for node in facts.inspection.nodes}
    places = {node.name: host_of(node.address) for node in facts.nodes}
    if facts.inspection.coordinator is not None:
        cards[COORDINATOR] = facts.inspection.coordinator
    for node in facts.nodes:
        for link in node.profile.links if node.profile is not None else ():
            if link.peer not in {*places, COORDINATOR} or places.get(link.peer) == places[node.name]:
                continue
            says = [cards[name].card_bits_per_s for name in (node.name, link.peer) if name in cards and cards[name].card_bits_per_s]
            bits, who = 8 * link.bandwidth_bytes_per_s, f"{node.name} and {link.peer}"
            measured = f"{bits * 1e-6:,.0f} Mbit/s from {link.peer} to {node.name}"
            if says and bits < OF_CARD * min(says):
                found = f"{measured}, its network card says {min(says) * 1e-6:,.0f} Mbit/s"
                advice = "look at cable, switch, duplex and Wi-Fi, and who else uses it; then 'bbgrap profile'"
                yield Finding("warning", who, "link", found, f"at least {OF_CARD:.0%} of it", advice)
            elif link.bandwidth_bytes_per_s <= SLOW_BYTES_PER_S:
                advice = "a faster network; else batches, streams (--objective throughput) or --transfer-dtype float16"
                yield Finding("warning", who, "link", measured, f"more than {8e-6 * SLOW_BYTES_PER_S:,.0f} Mbit/s", advice)


def _distances(facts: ClusterFacts) -> Iterator[Finding]:
    there = {COORDINATOR, *(node.name for node in facts.nodes)}
    round_trips: dict[frozenset[str], float] = {}
    for node in facts.nodes:
        for link in node.profile.links if node.profile is not None else ():
            if link.peer in there:
                pair = frozenset((node.name, link.peer))
                round_trips[pair] = max(round_trips.get(pair, 0.0), link.round_trip_s)
    for pair, seconds in round_trips.items():
        if seconds >= FAR_S:
            found = f"requests that both take part in cross a link of {1e3 * seconds:,.0f} ms, and wait for it at each exchange"
            advice = (
                "nodes and coordinator in one network, near the clients; else only batches and streams (--objective throughput) gain by it"
            )
            yield Finding(
                "warning", " and ".join(sorted(pair, key=name_order)), "round trip", found, f"less than {1e3 * FAR_S:g} ms", advice
            )


def _answers(facts: ClusterFacts) -> Iterator[Finding]:
    for node in facts.nodes:
        if node.differed:
            found = f"in {node.differed} of {node.verified} requests that were verified, answers differed"
            advice = "take it out, and look at its memory, unless models are quantized and processors of several kinds (docs/security.md)"
            yield Finding("warning", node.name, "answers", found, "none", advice)
    for model in facts.inspection.models:
        who = f"model {model.model[:8]} ({model.shapes})"
        if not model.nodes:
            advice = "the coordinator's log says when it is tried again; 'bbgrap submit' shows the whole reason"
            yield Finding("error", who, "served", f"by nobody: {model.why_not}", "a plan or a standby", advice)
        elif model.why_not:
            found = f"by its standby on {', '.join(model.nodes)}, not by a plan: {model.why_not}"
            advice = "nothing while it is planned; else 'bbgrap plan MODEL --explain' says what a plan would gain"
            yield Finding("note", who, "served", found, "a plan, where one is faster", advice)

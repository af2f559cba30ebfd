"""`bbgrap doctor`: what is wrong on this machine and in a cluster, and what to do about it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.input_options import FreeDimensionsError, GivenInputs
from bbgrap.cli.options import Json, Where, given_inputs, takes, where_is
from bbgrap.cli.output import print_json, print_result, print_sentences, step

if TYPE_CHECKING:
    from bbgrap.doctor.checks import Finding
    from bbgrap.protocol.status_messages import NodeStatus

_SEARCH_S = 5.0
"""How long a plan is searched for, to predict what one more node would gain."""


@takes(inputs=given_inputs, where=where_is)
def doctor(
    inputs: GivenInputs,
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="Say also what keeps this model from being faster on the cluster.", show_default=False)
    ] = "",
    *,
    where: Where,
    cache_dir: Annotated[Path | None, typer.Option(help="As agents here are started; default ~/.cache/bbgrap/agent.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="As a coordinator here is; default ~/.cache/bbgrap/coordinator.")] = None,
    keys_dir: Annotated[Path | None, typer.Option(help="As agents here are started; default ~/.config/bbgrap/keys.")] = None,
    as_json: Json = False,
) -> None:
    """Look for what is wrong: on this machine, and with a coordinator in the cluster.

    Here: Python and packages, folders, disk, memory, CPU quota, names, ports. In the cluster: who reaches whom, clocks, versions, quota,
    steal, other programs, memory, disk, unequal nodes, links that do less than their cards say, models without a plan. With a model: what
    keeps it from being faster, and whether one more node would help. Exit code 0, or 1 if there is an error among what is found.

    Examples:
        bbgrap doctor

        bbgrap doctor --coordinator tcp://head:7070

        bbgrap doctor zoo:resnet50 --coordinator tcp://head:7070

        bbgrap doctor text.onnx --input tokens=1x128 --coordinator tcp://head:7070
    """
    from dataclasses import asdict

    from bbgrap.doctor.checks import check_here, exit_code, in_order
    from bbgrap.doctor.local_facts import read_here
    from bbgrap.transport.control_sockets import check_address
    from bbgrap.user_folders import cache_folder, settings_folder

    address = check_address(where.coordinator) if where.coordinator else ""
    agent, coordinators = cache_dir or cache_folder() / "agent", state_dir or cache_folder() / "coordinator"
    with step("looking at this machine"):
        here = read_here(address, agent, coordinators, keys_dir or settings_folder() / "keys")
    found = list(check_here(here, is_loaded=bool(address)))
    nodes: tuple[NodeStatus, ...] = ()
    if address and here.is_listening:
        of_cluster, nodes = _in_cluster(address, where)
        found += of_cluster
    if model:
        found += _about(model, inputs, nodes)
    found = in_order(found)
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        _show(found, "this machine and the cluster" if address else "this machine")
    raise typer.Exit(exit_code(found))


def _in_cluster(address: str, where: Where) -> tuple[list[Finding], tuple[NodeStatus, ...]]:
    """Return what is wrong in a cluster, and its nodes."""
    from bbgrap.doctor.checks import Finding
    from bbgrap.doctor.cluster_checks import ClusterFacts, check_cluster
    from bbgrap.errors import BbgrapError, ClusterUnavailableError
    from bbgrap.own_code import full_version
    from bbgrap.protocol.addresses import host_of
    from bbgrap.session import connect

    try:
        with step("asking the cluster"), connect(address, token_file=where.token_file, insecure=where.insecure) as connection:
            nodes, lost = connection.nodes(), connection.status().lost_for_s
            facts = ClusterFacts(full_version(), host_of(address), connection.coordinator_version, nodes, connection.inspect(), lost)
    except BbgrapError as error:  # it listens
        is_silent = isinstance(error, ClusterUnavailableError)
        advice = "is it a coordinator at all, and not stopped?" if is_silent else "docs/security.md has tokens"
        return [Finding("error", "coordinator", "access", str(error), "an answer", advice)], ()
    return list(check_cluster(facts)), nodes


def _about(model: str, given: GivenInputs, nodes: tuple[NodeStatus, ...]) -> list[Finding]:
    """Return what is predicted of a model on these nodes, or what is wrong with it."""
    from bbgrap.doctor.checks import Finding
    from bbgrap.errors import BbgrapError

    try:
        return _predicted(model, given, nodes)
    except BbgrapError as error:
        again = f"for example: {shlex.join(error.options)}" if isinstance(error, FreeDimensionsError) else "bbgrap inspect shows what it is"
        return [Finding("error", model, "model", str(error), "a model that can be planned", again)]


def _predicted(model: str, given: GivenInputs, nodes: tuple[NodeStatus, ...]) -> list[Finding]:
    from bbgrap.cli.inputs import read_inputs
    from bbgrap.cli.models import find_model
    from bbgrap.doctor.checks import Finding
    from bbgrap.doctor.one_more_node import check_model, cluster_of
    from bbgrap.engine.load import load_graph
    from bbgrap.engine.prepare import fit
    from bbgrap.planners.options import AUTO, PlanOptions

    path = find_model(model)
    graph = load_graph(path, read_inputs(path, given).shapes)
    if not nodes:
        return [Finding("note", model, "prediction", "none: there are no nodes", "a cluster", "give --coordinator, and start agents")]
    options = PlanOptions(AUTO, search_seconds=_SEARCH_S)
    with step("predicting, also with one more node"):
        forecast, _ = fit(graph, cluster_of(nodes), options)
        return list(check_model(model, forecast, options))


def _show(found: list[Finding], where: str) -> None:
    for finding in found:
        print_sentences(f"{finding.severity}: {finding.who}: {finding.about}: {finding.found}")
        print_sentences(f"    expected: {finding.expected}\n    do: {finding.advice}")
    counts = [(sum(f.severity == severity for f in found), severity) for severity in ("error", "warning", "note")]
    told = ", ".join(f"{count} {severity}{'' if count == 1 else 's'}" for count, severity in counts)
    print_result(f"{where}: {told}" if found else f"{where}: nothing is wrong")

"""What `plan`, `export` and `simulate` have in common: planning here, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bbgrap.auto.forecast import Forecast
from bbgrap.cli.inputs import ModelInputs, read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.options import OfflineCase, offline_cluster
from bbgrap.cli.output import say, step
from bbgrap.cluster.files import doubts
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.engine.growing_state import LENGTH, fit_growing, is_of_any_length
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import fit
from bbgrap.engine.reload import ReloadedModel
from bbgrap.errors import UsageError
from bbgrap.graph.onnx_read import read_model
from bbgrap.graph.onnx_shapes import defaults_of
from bbgrap.graph.state import with_state
from bbgrap.planners.options import PlanOptions
from bbgrap.program.dictionaries import have_few_values
from bbgrap.session.signature import Signature
from bbgrap.session.state_pairs import StateText, pairs_of

_NAMED = 8
"""So many nodes are named in a remark."""


@dataclass(frozen=True)
class OfflinePlan:
    """A model, planned in this process; `report` is the object of `plan --json`."""

    path: Path
    inputs: ModelInputs
    forecast: Forecast
    report: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """The names of the nodes, in device order."""
        return [node.name for node in self.forecast.compiled.plan.cluster.nodes]

    @property
    def title(self) -> str:
        """One line on what was planned."""
        used = len(self.forecast.compiled.plan.devices_used)
        of = "" if used == len(self.names) else f" of {len(self.names)}"
        plan, transfers = self.forecast.compiled.plan, self.forecast.compiled.optimized.transfers
        lossy = "" if transfers == "exact" else f", floats travelling as {transfers} (lossy)"
        return f"{self.report['model']} by planner '{plan.planner}' over {used}{of} node{'s' * (len(self.names) != 1)}{lossy}"


def plans_offline(model: str, asked: Sequence[PlanOptions], case: OfflineCase, state: str = "") -> Iterator[OfflinePlan]:
    """Load a model and yield its plan by each of these options; with `state`, as a command line says it, of further requests of sequences.

    Raises:
        BbgrapError: if the options, the cluster file, the model or the shapes are wrong, or there is no plan.
    """
    clusters = [offline_cluster(case.agents, case.cluster, case.shares, options) for options in asked]
    for node in clusters[0].nodes:
        for doubt in doubts(node):
            say(f"'{case.cluster}': {doubt}")
    if case.cluster is None:
        say("without --cluster FILE a node is a generic core, a link 1 Gbit/s: what is predicted is not of this machine")
    path = find_model(model)
    inputs = read_inputs(path, case.inputs)
    with step("loading for these shapes"):
        fitted = _fit_of(state, path, inputs.shapes, model) if state else partial(fit, load_graph(path, inputs.shapes))
    if fitted.func is fit_growing:
        say(f"its state grows: what is planned takes requests of any length, what is predicted is one word after {LENGTH}")
    for options, cluster in zip(asked, clusters, strict=True):
        by = f" by '{options.planner}'" if len(asked) > 1 else ""
        with step(f"planning over {len(cluster.nodes)} nodes{by}"):
            few = len(inputs.tensors) == len(inputs.shapes) and have_few_values(list(inputs.tensors.values()))
            forecast, variant = fitted(cluster, replace(options, input_values="few") if few else options)
        yield _planned(model, path, inputs, forecast, variant)


def _fit_of(state: str, path: Path, shapes: Mapping[str, tuple[int, ...]], model: str) -> partial[tuple[Forecast, PlannedVariant]]:
    """Return what plans a model with state, as a cluster does."""
    said = StateText.parse(state)
    if said.shapes:
        raise UsageError(f"--state {state}: shapes are told with --input NAME=SHAPE here")
    file = read_model(path)
    pairs = dict(pairs_of(said.state, Signature.of(file), model))
    defaults = {name: array.shape for name, array in defaults_of(file, pairs).items()}
    loaded = ReloadedModel(path, pairs)
    graph = with_state(loaded.graph(path, {**defaults, **shapes}), pairs)
    if not is_of_any_length(graph, loaded.declared):
        return partial(fit, graph)
    return partial(fit_growing, graph, loaded.open_graph, loaded.declared)


def _planned(model: str, path: Path, inputs: ModelInputs, forecast: Forecast, variant: PlannedVariant) -> OfflinePlan:
    """Return a plan with its report, and say what is odd about it."""
    if changed := variant.report["changed"]:
        say(f"does not fit, planned otherwise: {'; '.join(changed)}")
    report = {**variant.report, "model": model, "inputs": {name: list(shape) for name, shape in inputs.shapes.items()}}
    planned = OfflinePlan(path, inputs, forecast, report)
    if len(forecast.compiled.plan.devices_used) < len(planned.names):
        idle = [name for number, name in enumerate(planned.names) if number not in forecast.compiled.plan.devices_used]
        more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
        say(f"left out, there is nothing for them to do: {', '.join(idle[:_NAMED])}{more}")
    return planned

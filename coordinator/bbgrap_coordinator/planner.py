"""A planner's process: makes plans or standbys, one after the other, for the coordinator that started it (`bbgrap_coordinator.planning`).

Not to be started by hand: its arguments are what it makes and the descriptor of a pipe to the coordinator.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from bbgrap.cluster.types import Cluster
from bbgrap.engine.growing_state import is_of_any_length, prepare_growing
from bbgrap.engine.prepare import PreparedVariant, prepare_graph, prepare_like, prepare_sequences
from bbgrap.engine.reload import ReloadedModel
from bbgrap.engine.standby import standby_of
from bbgrap.errors import BbgrapError
from bbgrap.file_locks import lock_at
from bbgrap.graph.state import with_state
from bbgrap.graph.top_k import blocks_for, with_top
from bbgrap.graph.types import Graph
from bbgrap.observing.logs import inherited_format, write_logs
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.limits import MAX_MODEL_BYTES
from bbgrap.transport.confinement import Permissions, confine, memory_bound
from bbgrap.transport.process import exit_with_parent
from bbgrap_coordinator.artifacts import write_artifacts
from bbgrap_coordinator.plan_tiles import read_tiles, write_tiles
from bbgrap_coordinator.planner_process import SCRATCH, PlannerReply, PlanTask, Task, fault_of

Prepare = Callable[[Graph, Cluster, PlanOptions], tuple[PreparedVariant, ...]]

FIRST_TO_GO = "500"
"""Of 1,000, what Linux adds to this process when memory runs out and one must end: its end costs one plan, that of others every request."""
NICE = 10
"""How far plans give way to whoever computes requests on the same machine."""
MODELS = 2
"""That are kept in memory, for further shapes."""
FILES = 4096
"""Descriptors: of each weight file of a model, and of what libraries open."""

_log = logging.getLogger("bbgrap.coordinator")


def main(prepare: Prepare = prepare_graph) -> None:
    """Plan until the coordinator ends."""
    write_logs(inherited_format())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    lock_at(Path(tempfile.gettempdir()))  # until this process ends: then its folder is nobody's
    maker = _Maker(prepare)
    channel = Connection(int(sys.argv[2]))
    with suppress(EOFError, ConnectionError):  # the coordinator has ended
        task: Task = channel.recv()
        _confine(task)
        exit_with_parent(_leave)  # a thread, so not before
        while True:
            channel.send_bytes(_reply(task, maker).to_bytes())
            task = channel.recv()
    _leave()  # whichever of the two has seen the coordinator's end first


def _leave() -> None:
    """End with the coordinator, in the middle of a plan, too; what was written for that goes, for nobody else knows of it."""
    scratch = Path(tempfile.gettempdir())
    if scratch.name.startswith(SCRATCH):
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


def _confine(task: Task) -> None:
    """Give up what no task needs: all have their models and folders beside those of the first."""
    models, plans = task.model.parent.parent, task.folder.parent
    own = Path(tempfile.gettempdir())
    missing = confine(Permissions(FILES, MAX_MODEL_BYTES, connects=False, reads=(models,), adds=(plans,), owns=(own,)))
    if missing:
        _log.warning("the process for %s is less confined than it should be: %s", sys.argv[1], "; ".join(missing))
    else:
        _log.info("the process for %s is confined: memory, files, calls and folders", sys.argv[1])


class _Maker:
    """Does tasks.

    Invariants: `_models` are those of which plans were made last.
    """

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._models: OrderedDict[tuple[str, ...], ReloadedModel] = OrderedDict()

    def make(self, task: Task) -> None:
        """Fill a task's folder."""
        if task.plan is None:
            write_artifacts(task.folder, (standby_of(task.model, task.state, task.top),), files=task.files)
            return
        os.nice(max(0, NICE - os.nice(0)))
        model, plan = self._model(task), task.plan
        cuts = [(folder, cut) for folder, place in plan.bases for cut in read_tiles(folder)[place : place + 1]]
        if not cuts:
            graph = _topped(model.graph(task.model, plan.shapes), plan)
            made = self._stateful(model, graph, plan) if plan.options.state else self._prepare(graph, plan.cluster, plan.options)
            write_artifacts(task.folder, [variant for variant, _ in made])
            write_tiles(task.folder, plan.shapes, [cut for _, cut in made])
        else:
            others = [(_topped(model.graph(task.model, cut.shapes), plan), cut.tiles) for _, cut in cuts]
            graph = _topped(model.graph(task.model, plan.shapes), plan)
            # Its weights are those of any of them.
            write_artifacts(task.folder, (prepare_like(graph, others, plan.cluster, plan.options),), cuts[0][0])

    def _stateful(self, model: ReloadedModel, graph: Graph, plan: PlanTask) -> tuple[PreparedVariant, ...]:
        graph = with_state(graph, dict(plan.options.state))
        if not is_of_any_length(graph, model.declared):
            return (prepare_sequences(graph, plan.cluster, plan.options),)

        def load(shapes: Mapping[str, tuple[int, ...]], open_axes: Mapping[str, frozenset[int]]) -> Graph:
            return _topped(model.open_graph(shapes, open_axes), plan)

        return (prepare_growing(graph, load, model.declared, plan.cluster, plan.options),)

    def _model(self, task: Task) -> ReloadedModel:
        state = dict(task.plan.options.state) if task.plan is not None else {}
        key = (*task.files.values(), *state)
        model = self._models.pop(key, None) or ReloadedModel(task.model, state)
        self._models[key] = model
        while len(self._models) > MODELS:
            self._models.popitem(last=False)
        return model


def _topped(graph: Graph, plan: PlanTask) -> Graph:
    """Return a graph that answers what the plan's options ask for, in as many blocks as suit its cluster."""
    return with_top(graph, dict(plan.options.top), blocks_for(len(plan.cluster.nodes))) if plan.options.top else graph


def _reply(task: Task, maker: _Maker) -> PlannerReply:
    try:
        maker.make(task)
    except BbgrapError as error:
        return PlannerReply(Fault.of(error).value, _without_place(str(error), task.model))
    except OSError as error:
        return PlannerReply(fault_of(error).value, f"planner: the coordinator cannot keep what was planned: {error.strerror or error}")
    except MemoryError:
        return PlannerReply(
            Fault.MODEL.value, f"planner: '{task.model.name}' needs more than the {memory_bound()} bytes that planning may take"
        )
    except Exception as error:
        return PlannerReply(Fault.PLAN.value, f"planner: {type(error).__name__}: {error}", traceback.format_exc())
    return PlannerReply()


def _without_place(text: str, model: Path) -> str:
    """Return what is wrong with a model without where it lies just now, which says nothing to who brought it: it is said who reads it."""
    return text.replace(f"'{model}'", f"'{model.name}' at the coordinator").replace(f"{model.parent}{os.sep}", "")


if __name__ == "__main__":
    main()

"""Keeping what must survive, beside the requests: one thread writes it, in the order in which it was said.

Laws: what is kept of a plan is never without its artifacts, at whatever step this process ends: they are there before the plan is saved
and removed after it is forgotten. At most `MAX_PLANS` plans with `max_bytes` of artifacts are kept: the least recently saved one goes
first, never one that is loaded, or may be on agents that come back. What cannot be written costs a restart its memory, not a request.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bbgrap.control.coordinator_instructions import ForgetPlan, RemoveProfile, SaveModel, SavePlan, SaveProfile
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.control.saved_state import SavedState, StoredPlan
from bbgrap.errors import PlanError
from bbgrap_coordinator.artifacts import ArtifactFolders, digest_on_disk, read_artifacts, sync_artifacts
from bbgrap_coordinator.state_database import StateDatabase

MAX_PLANS = 64

Keeping = SaveModel | SaveProfile | RemoveProfile | SavePlan | ForgetPlan

_log = logging.getLogger("bbgrap.coordinator")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A job's folder: its size, and the epochs of the plan that was saved of it."""

    nbytes: int
    epochs: frozenset[int] = frozenset()


class Storage:
    """The state of a coordinator and its folders of artifacts.

    Invariants: after `read`, they are used by the thread of `_pool` only; `_kept` are the jobs with folders, least recently saved first.
    """

    def __init__(self, state: StateDatabase, folders: ArtifactFolders, *, max_plans: int = MAX_PLANS, max_bytes: int = sys.maxsize) -> None:
        """Use a state that nothing else uses."""
        self._state = state
        self._folders = folders
        self._max_plans = max_plans
        self._max_bytes = max_bytes
        self._pool = ThreadPoolExecutor(1, "storage")
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._loaded: set[int] = set()

    def read(self, sizes: Mapping[str, int]) -> SavedState:
        """Return what an earlier coordinator has left, and remove what belongs to nothing; `sizes` are those of model files, by digest."""
        plans = []
        for plan, artifacts in self._state.plans():
            variants = self._variants_of(plan, artifacts)
            if variants is not None:
                plans.append((plan, variants))
        self._folders.keep_only({plan.job for plan, _ in plans})
        for plan, _ in reversed(plans):
            self._keep(plan.job, frozenset(variant.epoch for variant in plan.variants))
        # Agents that come back may have them loaded; those of agents that never do are released at last.
        self._loaded = {epoch for kept in self._kept.values() for epoch in kept.epochs}
        state = self._state
        return SavedState(
            files=sizes,
            models=state.models(sizes),
            measured=state.profiles(by_hand=False),
            given=state.profiles(by_hand=True),
            plans=tuple(plan for plan in reversed(plans) if plan[0].job in self._kept),
            saw_agents=bool(state.number("saw_agents")),
        )

    def _variants_of(self, plan: StoredPlan, artifacts: str) -> tuple[PlannedVariant, ...] | None:
        job = plan.job
        try:
            made = read_artifacts(self._folders.path(job), artifacts)
            if not plan.fits(made):
                raise PlanError("its variants, or their nodes, are not those that its job made")
            return made
        except PlanError as error:
            _log.warning("plan of job %d is dropped: %s", job, error)
            self._state.forget_plan(job)
            return None

    def close(self) -> None:
        """Write what was said, and end."""
        self._pool.shutdown()
        self._state.close()

    def flush(self) -> None:
        """Wait until all that was said is on the disk."""
        self._pool.submit(lambda: None).result()

    # --- what is said, by one thread ------------------------------------------------------------------------------------------------

    def carry_out(self, instruction: Keeping) -> None:
        """Keep something, or keep it no longer; of a plan that is saved the artifacts are there."""
        self._do(lambda: self._carry_out(instruction))

    def made(self, job: int) -> None:
        """Note that a job's folder is there; without a plan, it counts as saved now."""
        self._do(lambda: self._keep(job))

    def loaded(self, epoch: int) -> None:
        """Do not remove the plan of which this is a variant, until `released`."""
        self._do(lambda: self._loaded.add(epoch))

    def released(self, epoch: int) -> None:
        """The variant of this epoch is loaded no longer."""
        self._do(lambda: self._loaded.discard(epoch))

    def keep_models(self, sizes: Callable[[], Mapping[str, int]]) -> None:
        """Keep no models any more of which files have made room; `sizes` returns those that are there, as for `read`."""
        self._do(lambda: self._state.models(sizes()))

    def saw_agents(self) -> None:
        """Keep that this cluster has had agents."""
        self._do(lambda: self._state.set_number("saw_agents", 1))

    # --- what is done, by another -----------------------------------------------------------------------------------------------------

    def _do(self, work: Callable[[], object]) -> None:
        self._pool.submit(self._guarded, work)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (sqlite3.Error, OSError) as error:
            _log.warning(
                "state directory '%s': something is not kept, and a restart will lack it: %s", self._folders.directory.parent, error
            )
        except Exception:
            _log.exception("state directory '%s': something is not kept", self._folders.directory.parent)

    def _carry_out(self, instruction: Keeping) -> None:
        match instruction:
            case SaveModel(model, files):
                self._state.save_model(model, files)
            case SaveProfile(profile, by_hand):
                self._state.save_profile(profile, by_hand=by_hand)
            case RemoveProfile(node, by_hand):
                self._state.forget_profile(node, by_hand=by_hand)
            case SavePlan(plan):
                self._save_plan(plan)
            case ForgetPlan(job):
                self._forget(job)

    def _save_plan(self, plan: StoredPlan) -> None:
        digest = digest_on_disk(self._folders.path(plan.job))
        if digest is None:
            _log.warning("plan of job %d is not kept: its artifacts are gone", plan.job)
            return
        # Here and not when it was made: a standby answers before it is on the disk.
        sync_artifacts(self._folders.path(plan.job))
        self._state.save_plan(plan, digest)
        self._keep(plan.job, frozenset(variant.epoch for variant in plan.variants))

    def _keep(self, job: int, epochs: frozenset[int] = frozenset()) -> None:
        self._kept[job] = _Kept(self._folders.nbytes(job), epochs)
        self._kept.move_to_end(job)
        for other in [other for other in self._kept if other != job]:
            if len(self._kept) <= self._max_plans and sum(kept.nbytes for kept in self._kept.values()) <= self._max_bytes:
                return
            if not self._loaded.intersection(self._kept[other].epochs):
                self._forget(other)

    def _forget(self, job: int) -> None:
        self._state.forget_plan(job)
        self._folders.remove(job)
        self._kept.pop(job, None)

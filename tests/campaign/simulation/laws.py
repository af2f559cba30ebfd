"""What holds of a coordinator's state between two events."""

from __future__ import annotations

from bbgrap.control.made_plans import MAX_AHEAD
from bbgrap.control.plans import MAX_DEATHS, ServedPlan
from bbgrap.control.scaled_plans import answer_more_at_once
from bbgrap.control.sequences import fits
from tests.campaign.simulation.head import Head


def _is_crowded(plan: ServedPlan) -> bool:
    """Whether what waits waits for copies of the standby that are busy: together they answer more than the plan."""
    copies = [] if plan.helper is None else plan.helper.open_variants
    return answer_more_at_once(len(copies), plan) and not any(v.queue.has_room for v in copies)


def state_faults(head: Head) -> list[str]:  # noqa: C901 - one branch per law
    """List what is wrong with a coordinator's state between two events."""
    machine, faults = head.machine, list[str]()
    requests, loading = machine.requests, machine.loading
    variants = list(loading.by_epoch.values())
    plans = list(machine.planning.plans.values())
    running = [number for variant in variants for number in variant.queue.running]
    waiting = [number for plan in plans for number in plan.waiting]
    verifying = [requests.verifying.running] if requests.verifying.running else []
    if sorted(running + waiting) != sorted([*requests.open, *verifying, *requests.synthetic.in_flight]):
        faults.append(f"open {sorted(requests.open)}, but running {running} and waiting {waiting}")
    if len(requests.table.by_caller) != len(requests.open):
        faults.append("by_caller and open differ")
    if requests.table.bytes != sum(request.bytes for request in requests.open.values()):
        faults.append("bytes of open requests are wrong")
    if loading.touched:
        faults.append("something is still touched")
    known = {id(plan) for plan in (*plans, *machine.standbys.by_model.values())}
    for variant in variants:
        if variant not in variant.plan.variants or id(variant.plan) not in known:
            faults.append(f"epoch {variant.epoch} is of no plan")
        if variant.queue.running and not variant.is_ready:
            faults.append(f"requests run on epoch {variant.epoch}, which is {variant.tracker.state}")
        if variant.is_ready != (variant.tracker.state == "ready" and not variant.away and not variant.pending):
            faults.append(f"epoch {variant.epoch} is ready, but {variant.away} are away and {variant.pending} pending")
        if not variant.queue.has_room and len(variant.queue.running) > variant.queue.limit:
            faults.append(f"too many requests run on epoch {variant.epoch}")
        if away := set(variant.away) & set(machine.members.by_name):
            faults.append(f"epoch {variant.epoch}: {sorted(away)} are there, but noted as away")
        here = set(variant.parts) - set(variant.away) - set(machine.members.by_name)
        if here and variant.tracker.state != "waiting":
            faults.append(f"epoch {variant.epoch}: {sorted(here)} are not there, but not noted as away")
    for plan in plans:
        if plan.job is not None and plan.job.number not in head.planning:
            faults.append(f"plan {plan.key[:8]} waits for job {plan.job.number}, which nobody does")
        if plan.ahead is not None:
            job = plan.ahead.job
            if plan.job is not None or any(variant.job == job.number for variant in plan.variants):
                faults.append(f"plan {plan.key[:8]} holds job {job.number}, and is planned or has loaded it")
            if job.number not in head.disk.made:
                faults.append(f"plan {plan.key[:8]} holds job {job.number}, of which nothing is kept")
            if gone := set(job.names) - set(machine.members.by_name):
                faults.append(f"plan {plan.key[:8]} holds job {job.number} over {sorted(gone)}, who are not there")
        if (
            plan.waiting
            and not requests.synthetic.has_turn
            and not _is_crowded(plan)
            and any(
                not v.queue.running if plan.is_stream else v.queue.has_room for v in plan.serving if machine.members.aside not in v.parts
            )
        ):
            first = requests.open[plan.waiting[0]]
            places = [v for v in plan.serving if v.queue.has_room] if first.sequence is not None else []
            if first.sequence is not None and (
                requests.sequences.home(first.sequence) or not any(fits(v, first.sequence, first) for v in places)
            ):
                continue
            if not first.interruptions and first.broken < MAX_DEATHS and not first.blamed and first.held is None:
                stuck = [m.name for m in machine.members.alive() if m.beat.request and m.beat.seconds > 0.3]
                if not stuck:
                    faults.append(f"request {first.number} waits for plan {plan.key[:8]}, which has room")
    sequences = requests.sequences._known.values()
    if requests.sequences._kept != sum(given.price for sequence in sequences for given in sequence.given or ()):
        faults.append("bytes of inputs that are kept are wrong")
    made_anew = sum(given.price for sequence in sequences if sequence.is_made_anew for given in sequence.given or ())
    if requests.sequences._kept - made_anew > requests.sequences.most_kept:
        faults.append("more inputs are kept than may be")
    asked = {id(request.sequence) for request in requests.open.values()}
    if stuck := [sequence.label for sequence in sequences if sequence.is_open and id(sequence) not in asked]:
        faults.append(f"{stuck} wait for requests that are not open")
    if sum(plan.ahead is not None for plan in plans) > MAX_AHEAD:
        faults.append("too many plans are held that are not earned")
    ahead = [plan.key[:8] for plan in plans if plan.job is not None and plan.job.is_ahead and not plan.job.spare_for]
    if len(ahead) > 1:
        faults.append(f"plans {ahead} are made ahead at once")
    if requests.synthetic.has_turn and not any(plan.timing is not None for plan in plans):
        faults.append("synthetic requests have the turn, but nothing is timed")
    holder = requests.synthetic._holder
    if (
        holder is not None
        and holder.timing is not None
        and not any(run.timing is holder.timing for run in requests.synthetic.in_flight.values())
    ):
        if requests.synthetic.is_busy:
            faults.append("requests wait for timing, which waits for another synthetic request")
        if not any(variant.takes_requests for variant in holder.variants):
            faults.append("requests wait for timing, which waits for a link or a load")
    recorded = {number for number in running if number in requests.open and requests.open[number].message.record}
    if (awaited := {number for number, request in requests.open.items() if request.trace}) != recorded:
        faults.append(f"records are awaited of {sorted(awaited)}, but {sorted(recorded)} are recorded")
    return faults

"""Says from a history whether what was promised was kept.

It knows nothing of the code: it reads what clients sent and got, and what was done.

Breaches are: an answer that is wrong, or a second one; no answer at all; an error that is not allowed, comes too late, or names nobody; a
node that does not come back; a key that was taken back and still opens something after a second; memory, descriptors or disk that grow;
more than two workers that die of one model.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bbgrap.cli.output import print_table

Line = dict[str, Any]

LATE_S = 1.0
"""How long after its deadline a request may end."""
BACK_S = 10.0
"""When all nodes must be there after all faults are healed."""
SHUT_S = 1.0
"""How long a key that was taken back may be answered."""
TAKEN_BACK = "client's token revoked"
"""The fault during which the clients with this token may be refused."""
RECOVERY_P99_S = 1.5
AFTER_S = 5.0
"""How long after a fault a time without an answer is taken for its consequence."""
GROWTH = {"rss": (1.5, 64 << 20), "descriptors": (1.3, 16), "disk": (1.3, 64 << 20)}
"""How much the last quiet points may be above the first: a factor, and what does not count."""
_HOSTILE = ("killer", "endless", "deadly", "stuck")
_OWN_MAKER = ("bulky",)
"""Tasks that ask too much of a machine that a fault has made small: they may be refused, with words."""
_DEADLY = ("killer_", "deadly_")
_MODEL = re.compile(r"is of model '([^']*)'")
_SIGNAL = "SIGFPE"
"""How they end a worker."""
_NAMES = re.compile(r"agent\d|agent '|tcp://|deadline|coordinator|busy|node")


@dataclass
class Verdict:
    """What a history says."""

    requests: int = 0
    answered: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    breaches: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    alone_s: list[float] = field(default_factory=list)
    together_s: list[float] = field(default_factory=list)
    by_kind_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By kind of fault that came alone: how long the slowest request took that met it."""
    back_s: list[float] = field(default_factory=list)
    growth: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    knocks: Counter[str] = field(default_factory=Counter)
    """What came of connections with wrong keys."""
    shut_out_s: list[float] = field(default_factory=list)
    """After how many seconds nodes that were taken back were gone."""
    errors: Counter[str] = field(default_factory=Counter)
    """Allowed ones, by task and kind."""

    def breach(self, kind: str, example: str) -> None:
        """Count a promise that was not kept."""
        self.breaches[kind] += 1
        if len(self.examples[kind]) < 5:
            self.examples[kind].append(example)

    def as_object(self) -> dict[str, Any]:
        """Return what `verdict.json` has."""
        return {
            "requests": self.requests,
            "answered": self.answered,
            "seconds": round(self.seconds, 1),
            "faults": dict(self.faults),
            "breaches": dict(self.breaches),
            "examples": dict(self.examples),
            "recovery_alone_s": {"p50": quantile(self.alone_s, 0.5), "p99": quantile(self.alone_s, 0.99), "of": len(self.alone_s)},
            "recovery_together_s": {
                "p50": quantile(self.together_s, 0.5),
                "p99": quantile(self.together_s, 0.99),
                "of": len(self.together_s),
            },
            "recovery_by_kind_s": {kind: round(max(times), 3) for kind, times in sorted(self.by_kind_s.items())},
            "slowest_request_by_kind_s": {kind: round(max(times), 3) for kind, times in sorted(self.waits_s.items())},
            "back_s": [round(seconds, 2) for seconds in self.back_s],
            "growth": self.growth,
            "knocks": dict(self.knocks),
            "shut_out_s": [round(seconds, 3) for seconds in self.shut_out_s],
            "errors": dict(self.errors),
        }


def read_histories(paths: Iterable[Path]) -> list[Line]:
    """Return all lines of some files, by time; the last of a file may have been cut."""
    lines = []
    for path in paths:
        text = path.read_bytes()
        lines += [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    return sorted(lines, key=lambda line: line["t"])


def check(lines: Sequence[Line]) -> Verdict:
    """Check a history, in the order of time."""
    verdict = Verdict(seconds=lines[-1]["t"] - lines[0]["t"] if lines else 0.0)
    verdict.faults.update(line["kind"] for line in lines if line["what"] == "fault")
    _check_requests(lines, verdict)
    _check_recovery(lines, verdict)
    _check_return(lines, verdict)
    _check_growth(lines, verdict)
    _check_deaths(lines, verdict)
    _check_keys(lines, verdict)
    for line in lines:
        if line["what"] == "broken":
            verdict.breach("the campaign itself", f"{line['kind']}: {line['text']}")
    return verdict


# --- requests -----------------------------------------------------------------------------------------------------------------------


def _check_requests(lines: Sequence[Line], verdict: Verdict) -> None:
    """Each request is answered once, rightly or with an allowed error, in time."""
    sent: dict[str, Line] = {}
    ends: dict[str, list[Line]] = defaultdict(list)
    killed = {line["pid"] for line in lines if line["what"] == "client killed"}
    for line in lines:
        if line["what"] == "sent":
            sent[line["id"]] = line
        elif line["what"] in {"answered", "failed"}:
            ends[line["id"]].append(line)
    healed = {line["fault"]: line["t"] for line in lines if line["what"] == "healed"}
    full = [
        (line["t"], healed.get(line["fault"], line["t"]) + LATE_S) for line in lines if line["what"] == "fault" and "disk" in line["kind"]
    ]
    barred = _barred(lines)
    verdict.requests = len(sent)
    for name, asked in sent.items():
        mine = [end for end in ends.get(name, []) if not _is_refused_rightly(end, barred)]
        refused = len(ends.get(name, [])) - len(mine)
        if refused and not mine:
            verdict.errors["AccessError: its token was revoked"] += 1
            continue
        if len(mine) > 1:
            verdict.breach("answered twice", f"{asked['task']} {name}")
        if mine:
            _check_end(asked, mine[0], full, verdict)
        elif int(name.partition(".")[0]) not in killed:
            verdict.breach("never answered", f"{asked['task']} {name}, sent at {asked['t']:.1f}")


def _barred(lines: Sequence[Line]) -> list[tuple[int, float, float, float]]:
    """Return when whose token (by the number of the process) was taken back: asked, done, and when another one was made."""
    faults = {line["fault"]: line["t"] for line in lines if line["what"] == "fault" and line["kind"] == TAKEN_BACK}
    asked, healed = faults.values(), [line["t"] for line in lines if line["what"] == "healed" and line["fault"] in faults]
    return [
        (
            line["pid"],
            max((t for t in asked if t <= line["t"]), default=line["t"]),
            line["t"],
            min((t for t in healed if t >= line["t"]), default=lines[-1]["t"]),
        )
        for line in lines
        if line["what"] == "revoked"
    ]


def _is_refused_rightly(end: Line, barred: Sequence[tuple[int, float, float, float]]) -> bool:
    pid = int(end["id"].partition(".")[0])
    is_refused = end["what"] == "failed" and end["kind"] == "AccessError"
    return is_refused and any(pid == its and asked <= end["t"] <= until + LATE_S for its, asked, _, until in barred)


def _check_end(asked: Line, end: Line, full: Sequence[tuple[float, float]], verdict: Verdict) -> None:
    about, took = f"{asked['task']} {asked['id']}", end["t"] - asked["t"]
    if took > asked["deadline"] + LATE_S:
        verdict.breach("after its deadline", f"{about}: {took:.1f} s of {asked['deadline']:g}")
    if end["what"] == "failed":
        _check_error(asked, end, took, full, verdict)
        return
    verdict.answered += 1
    if end["off"] > 1:
        verdict.breach("wrong answer", f"{about}: {end['off']} times what is allowed")


def _check_error(asked: Line, end: Line, took: float, full: Sequence[tuple[float, float]], verdict: Verdict) -> None:
    task, text = asked["task"].partition(":")[0], end["text"]
    about = f"{asked['task']} {asked['id']} at {end['t']:.1f} after {took:.1f} s: {end['kind']}: {text[:400]}"
    if not _NAMES.search(text):
        verdict.breach("an error that names nobody", about)
    at_deadline = "deadline" in text and took >= asked["deadline"] - LATE_S
    if task in _HOSTILE or task in _OWN_MAKER:
        verdict.errors[f"{task}: {end['kind']}"] += 1
    elif "room" in text and any(begin <= end["t"] <= until for begin, until in full):
        # A model cannot be brought to a coordinator whose disk is full.
        verdict.errors[f"{task}: {end['kind']}, disk full"] += 1
    elif at_deadline:
        # The faults are shorter than the deadlines: nothing of what was done explains this.
        verdict.breach("lost until its deadline", about)
    else:
        verdict.breach("failed", about)


# --- recovery -----------------------------------------------------------------------------------------------------------------------


def _check_recovery(lines: Sequence[Line], verdict: Verdict) -> None:
    """Somebody is answered soon after a fault began, or, where nobody could be, was healed."""
    innocent = {line["id"] for line in lines if line["what"] == "sent" and line["task"].partition(":")[0] not in (*_HOSTILE, *_OWN_MAKER)}
    answers = [line["t"] for line in lines if line["what"] == "answered" and line["id"] in innocent]
    asked = {line["id"]: line["t"] for line in lines if line["what"] == "sent"}
    took = [(asked[line["id"]], line["t"]) for line in lines if line["what"] == "answered" and line["id"] in innocent]
    healed = {line["fault"]: line["t"] for line in lines if line["what"] == "healed"}
    end = lines[-1]["t"] if lines else 0.0
    faults = [line for line in lines if line["what"] == "fault"]
    blocked = [(line["t"], healed.get(line["fault"], end)) for line in faults if line["blocks"]]
    for fault in faults:
        if not fault["counts"]:
            continue
        until = healed.get(fault["fault"], end) + AFTER_S
        gap = longest_gap(answers, fault["t"], min(until, end), blocked)
        (verdict.alone_s if fault["alone"] else verdict.together_s).append(gap)
        if fault["alone"]:
            verdict.by_kind_s[fault["kind"]].append(gap)
            verdict.waits_s[fault["kind"]].append(max((b - a for a, b in took if a < until and b > fault["t"]), default=0.0))
    if verdict.alone_s and (p99 := quantile(verdict.alone_s, 0.99)) > RECOVERY_P99_S:
        worst = max(verdict.by_kind_s, key=lambda kind: max(verdict.by_kind_s[kind]))
        verdict.breach("slow recovery", f"p99 {p99:.2f} s; the slowest: {worst}, {max(verdict.by_kind_s[worst]):.2f} s")


def longest_gap(answers: Sequence[float], began: float, until: float, blocked: Sequence[tuple[float, float]] = ()) -> float:
    """Return the longest time without an answer in a window; times in which nobody could answer do not count."""
    inside = [began, *(t for t in answers if began < t < until), until]
    return max(
        ((b - a) - sum(max(0.0, min(b, end) - max(a, begin)) for begin, end in blocked) for a, b in pairwise(inside)),
        default=0.0,
    )


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value that this part of the values does not exceed; 0 of none."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3) if ordered else 0.0


# --- the machines -------------------------------------------------------------------------------------------------------------------


def _check_return(lines: Sequence[Line], verdict: Verdict) -> None:
    for line in lines:
        if line["what"] != "all back":
            continue
        if line["seconds"] is not None:
            verdict.back_s.append(line["seconds"])
        if line["seconds"] is None or line["seconds"] > BACK_S:
            took = "never" if line["seconds"] is None else f"after {line['seconds']:.1f} s"
            verdict.breach("nodes came back late", f"at {line['t']:.1f}, {took}: missing {line['missing']}, apart {line['unreachable']}")


def _check_growth(lines: Sequence[Line], verdict: Verdict) -> None:
    """What machines take at the last quiet points is what they took at the first, and a little."""
    series: dict[tuple[str, str], list[int]] = defaultdict(list)
    for line in lines:
        if line["what"] == "measured":
            for what in GROWTH:
                series[line["machine"], what].append(line[what])
    for (machine, what), values in series.items():
        third = len(values) // 3
        # The first quiet point comes before there are all plans.
        if third < 2:
            continue
        before, after = statistics.median(values[1 : 1 + third]), statistics.median(values[-third:])
        factor, free = GROWTH[what]
        verdict.growth[f"{machine} {what}"] = round(after / max(before, 1), 3)
        if after > factor * before and after - before > free:
            verdict.breach("growth", f"{machine}: {what} from {before:,.0f} to {after:,.0f}")


def _check_deaths(lines: Sequence[Line], verdict: Verdict) -> None:
    """A hostile model ends two workers at most, until the coordinator is hurt, which may forget what has ended them.

    A worker that had two models says nothing of either before one of them is loaded again, alone. Where no other fault comes between, that
    happens, and such workers count as others do; else there may be two of them besides.
    """
    faults = [line for line in lines if line["what"] == "fault"]
    ended = [(line["t"], set(_MODEL.findall(line["text"]))) for line in lines if line["what"] == "worker ended" and _SIGNAL in line["text"]]
    sent = {line["task"]: line["t"] for line in reversed(lines) if line["what"] == "sent"}
    for task, began in sent.items():
        name = task.replace(":", "_")
        forgets = min((fault["t"] for fault in faults if fault["t"] >= began and "coordinator" in fault["targets"]), default=float("inf"))
        deaths = [(t, named == {name}) for t, named in ended if t > began and {m for m in named if m.startswith(_DEADLY)} == {name}]
        before = next((fault for fault in reversed(faults) if fault["t"] <= began), None)
        following = min((fault["t"] for fault in faults if fault["t"] > began), default=float("inf"))
        alone = sum(t < following for t, _ in deaths) if before is not None and before["alone"] else 0
        known, all_of_them = sum(t < forgets and is_known for t, is_known in deaths), sum(t < forgets for t, _ in deaths)
        if alone > 2 or known > 2 or all_of_them > 4:
            verdict.breach("a model ended too many workers", f"{task}, at {began:.1f}: {all_of_them}")


def _check_keys(lines: Sequence[Line], verdict: Verdict) -> None:
    """What was taken back opens nothing after a second."""
    replaced = [(line["pid"], line["t"]) for line in lines if line["what"] == "replaced"]
    for pid, _, done, _ in _barred(lines):
        until = min((t for its, t in replaced if its == pid and t >= done), default=done)
        late = [
            line for line in lines if line["what"] == "answered" and done + SHUT_S < line["t"] < until and line["id"].startswith(f"{pid}.")
        ]
        for line in late:
            verdict.breach("a revoked key was answered", f"{line['id']} at {line['t']:.1f}, {line['t'] - done:.1f} s later")
    for line in lines:
        if line["what"] == "knocked":
            verdict.knocks["answered" if line["came"] else "refused" if line["why"] else "nobody there"] += 1
            if line["came"]:
                verdict.breach("a wrong key was answered", f"{line['key']} at {line['t']:.1f}")
        elif line["what"] == "shut out":
            left, ended = line["left_s"], line["ended_s"]
            verdict.shut_out_s.append(left)
            if left > SHUT_S:
                verdict.breach("a revoked node stayed", f"{line['agent']} at {line['t']:.1f}: {left} s")
            if ended is None:
                verdict.breach("a revoked node did not end", f"{line['agent']} at {line['t']:.1f}")


def summary(verdict: Verdict) -> None:
    """Print a verdict for people."""
    rows = [
        (kind, count, *(f"{max(times[kind]):.2f}" if times.get(kind) else "" for times in (verdict.by_kind_s, verdict.waits_s)))
        for kind, count in sorted(verdict.faults.items())
    ]
    total, per_s = verdict.faults.total(), verdict.requests / max(verdict.seconds, 1.0)
    title = f"{verdict.requests:,} requests ({per_s:.0f} per s), {total:,} faults of {len(verdict.faults)} kinds, {verdict.seconds:.0f} s"
    print_table(("fault", "times", "alone: nobody answered, s", "slowest request, s"), rows, title=title)
    found = verdict.as_object()
    lost = sum(verdict.breaches[kind] for kind in ("never answered", "lost until its deadline", "failed"))
    facts = [
        ("lost", lost),
        ("wrong", verdict.breaches["wrong answer"]),
        ("answered twice", verdict.breaches["answered twice"]),
        ("recovery alone, p50 / p99, s", f"{found['recovery_alone_s']['p50']} / {found['recovery_alone_s']['p99']}"),
        ("recovery together, p50 / p99, s", f"{found['recovery_together_s']['p50']} / {found['recovery_together_s']['p99']}"),
        ("all nodes back, at most, s", max(verdict.back_s, default=0.0)),
        ("wrong keys that knocked", dict(verdict.knocks)),
        ("revoked nodes gone, at most, s", f"{max(verdict.shut_out_s, default=0.0):.2f} of {len(verdict.shut_out_s)}"),
        ("largest growth", max(verdict.growth.items(), key=lambda entry: entry[1], default=("none", 1.0))),
        ("allowed errors", dict(verdict.errors)),
    ]
    print_table(("", ""), [(name, str(value)) for name, value in facts])
    print_table(("breach", "times"), sorted(verdict.breaches.items()), title="None." if not verdict.breaches else "Breaches")
    for kind, examples in verdict.examples.items():
        for example in examples:
            print(f"{kind}: {example}")  # noqa: T201

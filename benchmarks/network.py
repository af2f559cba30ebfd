"""One request on two machines against one: `python -m benchmarks.network --models resnet50,vgg16 --links 100mbit,1gbit`.

Two agents, one core each, fp32, batch 1 unless said (`resnet50@10`). The single node is plain onnxruntime in one process on one such core
with the input at hand; coordinator, client and input live on the first machine, so only the second machine's share crosses the link.
Single node and cluster take turns run by run; times are medians, the speed-up is the median of the ratios within a turn. Plain
onnxruntime with two threads, which shares its memory, has turns too: what no network could beat.

`--locks tls,insecure` measures what locks cost instead (`benchmarks/lock_price.py`).

Links are emulated (`benchmarks/testbed.py`), which needs root on Linux; else only `loopback` is measured. Results are added to
`benchmarks/results/network-MODEL.json`, with a picture beside it; what was measured before for the same link and planner is replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bbgrap.bench import bench
from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.cli.models import find_model
from bbgrap.cli.options import options_of
from bbgrap.cli.output import print_json, print_table, say, step
from bbgrap.errors import UsageError
from bbgrap.planners.options import TRANSFER_TYPES, PlanOptions, TransferType
from benchmarks.exit_status import exit_status
from benchmarks.kept import Row, keep_by_model
from benchmarks.lock_price import compare, print_prices
from benchmarks.plots import grouped_bars
from benchmarks.speedups import write_table
from benchmarks.testbed import CORES, LOCKS, Lock, Rate, Reached, at, can_limit, open_testbed, probe

MODELS = "resnet50,vgg16"
LINKS = "loopback,10gbit,1gbit,100mbit"
PLANNERS_MEASURED = "bbgrap:rows,bbgrap:channels"
RUNS = 20
QUICK_RUNS = 7
KEY = ("model", "batch", "link", "planner", "split", "objective", "transfer_dtype", "inputs")
"""What makes two rows the same measurement."""


@dataclass(frozen=True, slots=True)
class ModelAt:
    """A model, as a name of the zoo or a file, and its batch."""

    name: str
    batch: int = 1

    @classmethod
    def parse(cls, text: str) -> ModelAt:
        """Read `resnet50`, `resnet50@10` or `model.onnx@4`.

        Raises:
            UsageError: if the batch is none.
        """
        name, at_sign, batch = text.strip().partition("@")
        if not name or (at_sign and (not batch.isdecimal() or not int(batch))):
            raise UsageError(f"model: expected NAME or NAME@BATCH, like resnet50@10, got '{text}'")
        return cls(name.removeprefix("zoo:"), int(batch) if at_sign else 1)

    @property
    def source(self) -> str:
        """What the commands of bbgrap call it."""
        return self.name if self.name.endswith(".onnx") else f"zoo:{self.name}"


@dataclass(frozen=True, slots=True)
class Job:
    """What is measured over one link."""

    model: ModelAt
    contenders: tuple[PlanOptions, ...]
    runs: int
    pictures: bool = False


def parse_planner(text: str, transfer_dtype: TransferType = "exact") -> PlanOptions:
    """Read `PLANNER`, `PLANNER:SPLIT` or `PLANNER/OBJECTIVE`.

    Raises:
        UsageError: if there is no such planner, split or objective.
    """
    rest, _, objective = text.strip().partition("/")
    name, _, split = rest.partition(":")
    return options_of(split or "rows", objective=objective or "latency", transfer_dtype=transfer_dtype)(name)


def measure(coordinator: Reached, job: Job) -> dict[str, Any]:
    """Measure one model from inside the first machine; the object of `bbgrap bench --json`."""
    path = find_model(job.model.source)
    feeds = read_inputs(path, GivenInputs(batch=job.model.batch)).feeds(0, pictures=job.pictures)
    with coordinator.connect() as connection, step("measuring") as progress:
        if any(options.planner == "auto" for options in job.contenders):
            progress.update("profiling nodes and link")
            connection.profile()
        return bench(
            path,
            feeds,
            connection,
            job.contenders,
            runs=job.runs,
            threads=1,
            whole_machine=frozenset(CORES),
            name=job.model.name,
            report=progress.update,
        )


def rows_of(report: Mapping[str, Any], job: Job, link: Mapping[str, Any], date: str) -> list[dict[str, Any]]:
    """Return one row per planner."""
    alone, whole, machine = report["single_node"], report["whole_machine"], report["machine"]
    facts = {
        "date": date,
        "processor": machine["processor"],
        "system": machine["system"],
        "onnxruntime": alone["onnxruntime"],
        "others_percent": machine["others_percent"],
        "busy": machine["busy"],
        "link": dict(link),
    }
    return [
        {
            "model": job.model.name,
            "batch": job.model.batch,
            "link": link["name"],
            "agents": len(report["agents"]),
            "planner": result["planner"],
            "split": result["split"],
            "objective": options.objective,
            "transfer_dtype": options.transfer_dtype,
            "inputs": "pictures" if job.pictures else "floats",
            "single_ms": alone["median_ms"],
            "distributed_ms": result["median_ms"],
            "distributed_p95_ms": result["p95_ms"],
            "speedup": result["speedup"],
            "ort_two_threads_ms": whole["median_ms"],
            "ort_two_threads_ratio": result["whole_machine_ratio"],
            "predicted_ms": result["predicted_ms"],
            "bytes": result["bytes_sent"],
            "input_bytes": result["scatter_bytes"],
            "output_bytes": result["gather_bytes"],
            "messages": result["transfers"],
            "exchanges": result["syncs"],
            "max_rel_err": result["max_rel_err"],
            "verified": result["verified"],
            "runs": report["runs"],
            "facts": facts,
        }
        for options, result in zip(job.contenders, report["results"], strict=True)
    ]


def order(row: Row) -> tuple[object, ...]:
    """Return what rows are sorted by: the slowest link is last."""
    return -(Rate.parse(row["link"]).bits_per_s or float("inf")), row["planner"], row["split"]


def series_of(row: Row) -> str:
    """Name the plan of a row."""
    exact = row["transfer_dtype"] == "exact"
    plan = f"{row['planner']}/{row['objective']}" if row["objective"] != "latency" else f"{row['planner']}:{row['split']}"
    return plan + ("" if exact else f" {row['transfer_dtype']}") + (" pictures" if row["inputs"] == "pictures" else "")


def picture(rows: Sequence[Row]) -> str:
    """Draw the speed-ups of one model, a group of bars per link; the dashed line is the single node."""
    values: dict[str, dict[str, float | None]] = {}
    for row in rows:
        values.setdefault(row["link"], {})[series_of(row)] = row["speedup"]
    first = rows[0]
    title = f"{first['model']}, batch {first['batch']}: two machines of one core against one"
    return grouped_bars(title, values)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table of a measurement."""
    columns = ("model", "batch", "link", "plan", "single ms", "cluster ms", "speed-up", "ort 2 threads ms", "ratio to it")
    keys = ("single_ms", "distributed_ms", "speedup", "ort_two_threads_ms", "ort_two_threads_ratio", "bytes", "exchanges", "max_rel_err")
    columns += ("bytes", "exchanges", "max rel err")
    cells = [(row["model"], row["batch"], row["link"], series_of(row), *(row[key] for key in keys)) for row in rows]
    print_table(columns, cells, title="two agents, one core each")


def price_link(rate: Rate, jobs: Sequence[Job], locks: Sequence[Lock]) -> list[dict[str, Any]]:
    """Measure all models over one link, on clusters that are locked in different ways."""
    found = []
    with open_testbed(rate, locks=locks) as bed:
        bits_per_s, round_trip_s = probe(bed.places, bed.hosts[1])
        link = {"link": rate.name, "measured_mbit_per_s": round(bits_per_s / 1e6, 1), "round_trip_us": round(round_trip_s * 1e6, 1)}
        clusters = dict(zip(locks, bed.coordinators, strict=True))
        for job in jobs:
            for options in job.contenders:
                say(f"{rate.name}: {job.model.name}, batch {job.model.batch}, {options.planner}")
                date = datetime.now(UTC).isoformat(timespec="seconds")
                row = at(bed.places[0], compare, clusters, job.model.source, job.model.batch, options, job.runs, job.pictures)
                found.append({"model": job.model.name, "batch": job.model.batch, **link, **row, "date": date})
    return found


def measure_link(rate: Rate, jobs: Sequence[Job], lock: Lock = "tls") -> list[dict[str, Any]]:
    """Measure all models over one link."""
    found = []
    with open_testbed(rate, locks=(lock,)) as bed:
        bits_per_s, round_trip_s = probe(bed.places, bed.hosts[1])
        link = {"name": rate.name, "measured_mbit_per_s": round(bits_per_s / 1e6, 1), "round_trip_us": round(round_trip_s * 1e6, 1)}
        say(f"{rate.name}: a plain TCP connection gets {bits_per_s / 1e6:,.0f} Mbit/s, {round_trip_s * 1e6:.0f} µs there and back")
        for job in jobs:
            say(f"{rate.name}: {job.model.name}, batch {job.model.batch}")
            report = at(bed.places[0], measure, bed.coordinator, job)
            found += rows_of(report, job, link, datetime.now(UTC).isoformat(timespec="seconds"))
    return found


def _work(given: argparse.Namespace) -> int:
    contenders = tuple(parse_planner(text, given.transfer_dtype) for text in given.planners.split(","))
    runs = given.runs or (QUICK_RUNS if given.quick else RUNS)
    jobs = [Job(ModelAt.parse(text), contenders, runs, given.pictures) for text in given.models.split(",")]
    rates = [Rate.parse(text) for text in given.links.split(",")]
    if not can_limit() and any(rate.bits_per_s for rate in rates):
        say("no root here: links cannot be emulated, measuring loopback only")
        rates = [Rate("loopback", None)]
    if given.locks:
        priced = [row for rate in rates for row in price_link(rate, jobs, parse_locks(given.locks))]
        print_json(priced) if given.json else print_prices(priced)
        return _status([row["machine"]["busy"] for row in priced], [row["verified"] for row in priced])
    rows = []
    for rate in rates:
        found = measure_link(rate, jobs, given.lock)
        rows += found
        if given.save:
            written = keep_by_model("network", found, KEY, order, picture)
            say(f"written: {', '.join(map(str, (*written, *write_table())))}")
    if given.json:
        print_json(rows)
    else:
        print_rows(rows)
    return _status([row["facts"]["busy"] for row in rows], [row["verified"] for row in rows])


def _status(busy: Sequence[bool], verified: Sequence[bool]) -> int:
    if any(busy):
        say("this machine was busy with other work: do not trust these times")
    return 0 if all(verified) else 1


def parse_locks(text: str) -> tuple[Lock, ...]:
    """Read two of them, `tls,insecure`.

    Raises:
        UsageError: if it is something else.
    """
    found = tuple(lock for name in text.split(",") for lock in LOCKS if lock == name.strip())
    if len(found) != 2 or len(set(found)) != 2 or text.count(",") != 1:
        raise UsageError(f"locks: expected two of {', '.join(LOCKS)} with a comma, got '{text}'")
    return found


def main() -> int:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help=f"zoo names or files, NAME@BATCH for a batch; default: {MODELS}")
    parser.add_argument("--links", default=LINKS, help=f"rates of the link, or loopback; default: {LINKS}")
    parser.add_argument(
        "--planners", default=PLANNERS_MEASURED, help=f"PLANNER, PLANNER:SPLIT or PLANNER/OBJECTIVE; default: {PLANNERS_MEASURED}"
    )
    parser.add_argument("--transfer-dtype", default="exact", choices=TRANSFER_TYPES, help="what floats become between agents")
    parser.add_argument("--pictures", action="store_true", help="inputs with the values of pictures of 8 bits a colour, not any floats")
    parser.add_argument("--runs", type=int, default=0, help=f"turns that are counted; default: {RUNS}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} turns")
    parser.add_argument("--lock", default="tls", choices=LOCKS, help="how the cluster is locked; default: %(default)s")
    parser.add_argument("--locks", default="", help="two of them, as tls,insecure: what the first costs, with the same plan, in turns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--save", action="store_true", help="keep the rows and their picture in benchmarks/results, and the table in the documents"
    )
    return exit_status(lambda: _work(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

"""`bbgrap submit`: one inference on a cluster."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.options import Json, LocalAgents, Model, Seed, Threads, Where, given_inputs, plan_options, takes, where_is
from bbgrap.cli.output import print_json, print_result, print_table, say, step
from bbgrap.planners.options import PlanOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bbgrap.graph import Array


@takes(options=plan_options, inputs=given_inputs, where=where_is)
def submit(
    model: Model,
    options: PlanOptions,
    inputs: GivenInputs,
    output: Annotated[Path | None, typer.Option(help="Write the outputs to this folder, as .npy files.", show_default=False)] = None,
    seed: Seed = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with plain onnxruntime here; exit code 1 if it differs.")] = False,
    agents: LocalAgents = None,
    threads: Threads = 1,
    *,
    where: Where,
    as_json: Json = False,
) -> None:
    """Run a model once on the cluster.

    Examples:
        bbgrap submit zoo:resnet50 --agents 2 --verify

        bbgrap submit model.onnx --input x=x.npy --output answers --coordinator tcp://head:7070

        bbgrap submit zoo:resnet50 --input cat.jpg --agents 2

        bbgrap submit yolo.onnx --input images=street.jpg --size 640x640 --normalize 0..1 --agents 2
    """
    import time

    from bbgrap.cli.inputs import read_inputs
    from bbgrap.cli.models import find_model
    from bbgrap.session import InferenceSession

    if output is not None:
        output.mkdir(parents=True, exist_ok=True)  # before anything slow is done
    path = find_model(model)
    feeds = read_inputs(path, inputs).feeds(seed)
    with where.open(agents, threads) as cluster:
        with step("planning and deploying") as progress:
            session = InferenceSession(path, cluster=cluster, options=options, on_progress=progress.report)
            plan = session.prepare({name: array.shape for name, array in feeds.items()}, feeds)
        with step("running"):
            start = time.perf_counter()
            answers = session.run(None, feeds)
            took_ms = 1e3 * (time.perf_counter() - start)
    outputs = dict(zip((item.name for item in session.get_outputs()), answers, strict=True))
    report: dict[str, Any] = {
        "model": model,
        "planner": plan.report["planner"],
        "transfer_dtype": options.transfer_dtype,
        "nodes_used": plan.report["nodes_used"],
        "latency_ms": took_ms,
        "inputs": {name: list(array.shape) for name, array in feeds.items()},
        "outputs": [
            {"name": name, "dtype": str(_array(value).dtype), "shape": list(_array(value).shape)} for name, value in outputs.items()
        ],
    }
    if output is not None:
        files = _write_outputs(output, outputs)
        for entry, file in zip(report["outputs"], files, strict=True):
            entry["file"] = str(file)
    result = None
    if verify:
        from bbgrap.engine.spread import ReferenceAnswers

        with step("running plain onnxruntime"):
            result = ReferenceAnswers(path, feeds).judge(answers, options.transfer_dtype)
        report |= {**result.as_dict(), "verified": result.verified, "fault": result.fault or None}
    if as_json:
        print_json(report)
    else:
        rows = [(name, array.dtype, list(array.shape), *_summary(array)) for name, array in ((n, _array(v)) for n, v in outputs.items())]
        print_table(("output", "dtype", "shape", "least", "mean", "largest"), rows)
        lossy = "" if options.transfer_dtype == "exact" else f", floats travelling as {options.transfer_dtype} (lossy)"
        nodes = ", ".join(plan.report["nodes_used"]) or "no node: nothing is computed"
        print_result(f"\nfirst answer in {took_ms:.1f} ms over {nodes}{lossy}; 'bbgrap bench' measures properly")
        if result is not None:
            print_result(result.text)
    if result is not None and not result.verified:
        raise typer.Exit(1)


def _array(value: object) -> Array:
    """Return an output as an array: lists and dictionaries become texts."""
    import numpy as np

    return value if isinstance(value, np.ndarray) else np.array(str(value))


def _write_outputs(folder: Path, outputs: dict[str, Any]) -> Sequence[Path]:
    import re

    import numpy as np

    files: list[Path] = []
    for number, (name, value) in enumerate(outputs.items()):
        array = _array(value)
        file = folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name).lstrip('.') or 'output'}.npy"
        file = file.with_name(f"{number}-{file.name}") if file in files else file
        foreign = array.dtype.kind == "V"  # of ml_dtypes, whose names numpy's files do not keep; 32 bits hold each exactly
        try:
            np.save(file, array.astype(str) if array.dtype.kind == "O" else array.astype(np.float32) if foreign else array)
        except OSError as error:  # numpy counts what was written, and does not say what hindered it
            reason = error.strerror or f"not all of it was written ({error}): is the disk full?"
            raise OSError(error.errno or errno.EIO, reason, str(file)) from error
        say(f"written: {file}" + (f", as float32: numpy's files know no {array.dtype}" if foreign else ""))
        files.append(file)
    return files


def _summary(array: Array) -> tuple[object, object, object]:
    import numpy as np

    array = array.astype(np.float32) if array.dtype.kind == "V" else array
    if array.dtype.kind not in "fiub" or not array.size:
        return (None, None, None)
    with np.errstate(invalid="ignore", over="ignore"):  # of infinities there is no mean, which is said as nan
        return (float(array.min()), float(array.mean()), float(array.max()))

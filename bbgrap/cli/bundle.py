"""The folder that `bbgrap export` writes: models and steps that any ONNX runtime and any transport can execute, without bbgrap.

index.json                 what is here, and how to execute it
plan.json                  the object of `bbgrap plan --json`
<node>/steps.json          what the node does for one request
<node>/segment0.onnx ...   its stand-alone models
coordinator/steps.json     how inputs are cut and outputs put together
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bbgrap.compiler.export import schedule_of, segment_graphs
from bbgrap.errors import UsageError
from bbgrap.graph.onnx_io import save_graph
from bbgrap.program.steps import Program
from bbgrap.runtime.schedule import LocalJoin, LocalPart, LocalReceive, LocalRun, LocalSend, LocalStep, Schedule

_HOST = "coordinator"

_INDEX, _PLAN = "index.json", "plan.json"

_TAKEN = (_HOST, _INDEX, _PLAN)
"""What lies beside the folders of the nodes."""

_LONGEST = 100
"""Letters of a folder's name. Chosen: file systems take 255, and some less of a whole path."""

_MEANING = {
    "nodes": "one folder per node; 'coordinator' computes nothing: it holds the model's inputs and needs its outputs",
    "steps": "executed in order; a node waits only at 'receive'",
    "buffers": "tensors, numbered per node; 'feeds' are filled before the first step, 'results' are read after the last one",
    "receive": "wait for the message of this number from node 'from'; its parts fill 'buffers', in order",
    "wire": "of a message: its 32-bit floats were asked to travel as 'float16', or as 'int8' with a scale per block of 64 numbers,"
    " or exactly as 'dictionary', a byte each and the values of every colour",
    "run": "run the model 'file'; its inputs are the buffers 'inputs' and its outputs fill the buffers 'outputs', in the model's order",
    "send": "send 'parts' as the message of this number to node 'to'; does not wait for it",
    "join": "fill buffer 'output': copy each piece's part of a buffer to the box 'to' of it",
    "part": "'box' of buffer 'buffer'; a box lists per axis its half-open ranges [start, stop); null is the whole buffer",
}


def check_folder(folder: Path) -> None:
    """Make sure that a folder can be written to, before anything slow is done.

    Raises:
        UsageError: if it is a file, or not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"output: '{folder}' is there already; expected a new or an empty folder")


def write_bundle(program: Program, names: Sequence[str], report: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write everything and return the content of index.json."""
    folders = [*_folder_names(names), _HOST]
    called = [*names, _HOST]
    nodes = []
    for number, segments in enumerate((*segment_graphs(program), ())):
        home = folder / folders[number]
        home.mkdir(parents=True, exist_ok=True)
        files = [f"segment{k}.onnx" for k in range(len(segments))]
        for file, segment in zip(files, segments, strict=True):
            save_graph(segment.graph, home / file)
        schedule = schedule_of(program, program.devices[number], segments)
        _write_json(home / "steps.json", {"name": called[number], **steps_document(schedule, called, files)})
        size = sum(path.stat().st_size for path in home.iterdir())
        entry = {
            "name": called[number],
            "folder": folders[number],
            "models": len(files),
            "steps_in_all": len(schedule.steps),
            "bytes": size,
        }
        nodes.append(entry)
    index = {
        "schema": 1,
        "model": report["model"],
        "inputs": report["inputs"],
        "outputs": list(program.graph.outputs),
        "meaning": _MEANING,
        "nodes": nodes,
    }
    _write_json(folder / _PLAN, report)
    _write_json(folder / _INDEX, index)
    return index


def steps_document(schedule: Schedule, names: Sequence[str], files: Sequence[str]) -> dict[str, Any]:
    """Return a schedule as plain values; `names` are those of the devices and the coordinator, `files` those of the models."""
    return {
        "feeds": list(schedule.feeds),
        "results": list(schedule.results),
        "buffers": [
            {"name": buffer.name, "dtype": buffer.dtype.name.lower(), "shape": None if buffer.shape is None else list(buffer.shape)}
            for buffer in schedule.buffers
        ],
        "steps": [_step(step, names, files) for step in schedule.steps],
    }


def _step(step: LocalStep, names: Sequence[str], files: Sequence[str]) -> dict[str, Any]:
    match step:
        case LocalReceive():
            return {"do": "receive", "message": step.message, "from": names[step.source], "buffers": list(step.buffers), **_wire(step)}
        case LocalRun():
            return {"do": "run", "file": files[step.segment], "inputs": list(step.inputs), "outputs": list(step.outputs)}
        case LocalSend():
            parts = [_part(part) for part in step.parts]
            return {"do": "send", "message": step.message, "to": names[step.destination], "parts": parts, **_wire(step)}
        case LocalJoin():
            return {"do": "join", "output": step.output, "pieces": [{**_part(part), "to": box} for part, box in step.pieces]}


def _wire(step: LocalReceive | LocalSend) -> dict[str, str]:
    return {} if step.wire == "exact" else {"wire": step.wire}


def _part(part: LocalPart) -> dict[str, Any]:
    return {"buffer": part.buffer, "box": part.box}


def _folder_names(names: Sequence[str]) -> list[str]:
    """Return a folder name per node: its own, as far as every file system allows it."""
    plain = [re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:_LONGEST] for name in names]
    clash = len({name.lower() for name in (*plain, *_TAKEN)}) != len(names) + len(_TAKEN)
    return [f"{number}-{name}" for number, name in enumerate(plain)] if clash or "" in plain else plain


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")

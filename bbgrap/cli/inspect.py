"""`bbgrap inspect`: what a model consists of, and how it can be split."""

from __future__ import annotations

from typing import Annotated

import typer

from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.options import Json, Model, given_inputs, takes
from bbgrap.cli.output import print_json, print_result, print_table


@takes(inputs=given_inputs)
def inspect(
    model: Model,
    inputs: GivenInputs,
    layers: Annotated[bool, typer.Option("--layers", help="List every layer, with the axes along which it splits.")] = False,
    as_json: Json = False,
) -> None:
    """Show a model's operators, shapes, parameters and work, what stays whole and why, and with --layers what splits along what.

    Examples:
        bbgrap inspect zoo:resnet50

        bbgrap inspect model.onnx --input tokens=1x128 --layers
    """
    from bbgrap.cli.inputs import read_inputs
    from bbgrap.cli.models import find_model
    from bbgrap.engine.load import load_graph
    from bbgrap.graph.onnx_types import text_of
    from bbgrap.planners.inspection import inspect_graph

    path = find_model(model)
    graph = load_graph(path, read_inputs(path, inputs).shapes)
    found = inspect_graph(graph)
    found["model"] = model
    for side, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        found[side] |= {name: text_of(graph.types[name].onnx) for name in names if graph.types[name].onnx}
    if as_json:
        print_json(found)
        return
    for side in ("inputs", "outputs"):
        for name, kind in found[side].items():
            print_result(f"{side[:-1]:<7} {name}: {kind}")
    print_result(f"{found['nodes']} nodes, {found['parameters']:,} parameters, {found['flops'] / 1e9:,.2f} GFLOP, opset {found['opset']}")
    operators = []
    for item in found["operators"]:
        work, weights = item["flops"] / 1e6, item["weight_bytes"] / 1e6
        operators.append((item["operator"], str(item["nodes"]), f"{work:,.1f}", f"{weights:,.1f}", str(item["whole"] or "")))
    print_table(("operator", "nodes", "MFLOP", "MB weights", "stay whole"), operators, title="operators")
    shown = found["layers"] if layers else [layer for layer in found["layers"] if layer["whole_because"]]
    rows = []
    for layer in shown:
        axes = [*map(str, layer["splits_along"]), *(f"sum over {name}" for name in layer["reduces_over"])]
        rows.append((layer["name"], layer["operator"], layer["output"], ", ".join(axes), layer["whole_because"] or ""))
    if rows:
        print_table(("layer", "operator", "output", "splits along", "whole because"), rows, title="layers" if layers else "stay whole")

"""Decoders that Optimum merged from one for a sequence's first request and one for all others: what only the first request makes lasts.

file     present ─── made by the first request, fillers in later ones
here     use_cache_branch ─► If ─── then: past, as it came  |  else: present, as it was made ──► present

So whoever goes on from what a request put out goes on from what the first one made, whichever of the two parts ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import helper

from bbgrap.graph.onnx_io import OnnxModel
from bbgrap.graph.onnx_tidy import copy_of
from bbgrap.graph.state import BRANCH


def with_first_made(model: OnnxModel, once: Mapping[str, str]) -> OnnxModel:
    """Return a model whose outputs in `once` are the inputs that they belong to, where `use_cache_branch` is true."""
    if not once:
        return model
    proto = copy_of(model.proto)
    made = {output: f"{output}.made" for output in once.values()}
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [made.get(name, name) for name in names]
    came, new = _passing(list(once), "then"), _passing([made[output] for output in once.values()], "else")
    name = "what the first request made"
    proto.graph.node.append(helper.make_node("If", [BRANCH], list(once.values()), name, then_branch=came, else_branch=new))
    return replace(model, proto=proto)


def _passing(names: list[str], branch: str) -> onnx.GraphProto:
    """Return a body that puts out values from around it."""
    passed = [f"{name}.{branch}" for name in names]
    nodes = [helper.make_node("Identity", [name], [out], out) for name, out in zip(names, passed, strict=True)]
    return helper.make_graph(nodes, branch, [], [onnx.ValueInfoProto(name=name) for name in passed])

"""Recurrent layers: batch and directions split; time is a chain, and every hidden unit reads all others of the step before.

Y is [time, directions, batch, hidden], Y_h and Y_c are [directions, batch, hidden]: whichever are in use, the batch is last but one. Where
inputs are quantized on the way, by the range of all of them, only directions split.
"""

from __future__ import annotations

from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, Description, Index, Subscript, operand
from bbgrap.tdl.operators.common import Reads, output_indices, with_whole_axes
from bbgrap.tdl.rule import LocalNode, OperatorRule, Site, operands_of, register

_QUANTIZING = "DynamicQuantizeLSTM"
OUTPUTS = {"LSTM": 3, "GRU": 2, "RNN": 2, _QUANTIZING: 3}
SEQUENCE_LENGTHS, FIRST_STATE, PEEPHOLES = 4, 5, 7
_WEIGHTS = (1, 2, 3, PEEPHOLES, *range(8, 12))
"""Operands with a part for each direction; the last four are scales and zero points."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1, _QUANTIZING: 4}
_ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1, _QUANTIZING: 3}
"""Functions that an operator applies in each direction."""


def describe_recurrent(site: Site) -> Description | None:
    """Y[t, d, b, h] or Y_h[d, b, h] = f(x[:, b, :], weights[d], state[d, b, :]).

    Directions stay together where parameters of functions are given, of which nobody knows to which function they belong.
    """
    if site.integer("layout", 0) or len(site.node.outputs) > OUTPUTS[site.node.op]:
        return None
    out = output_indices(site)
    together = {out[-2]} if site.node.op == _QUANTIZING else set[Index]()
    together |= {out[-3]} if any(f"activation_{name}" in site.node.attributes for name in ("alpha", "beta")) else set()
    direction, batch = (ALL if index in together else index for index in out[-3:-1])
    reads = [operand(0)[ALL, batch, ALL]]
    reads += [operand(k)[direction, *(ALL,) * (len(site.shape(k)) - 1)] for k in _WEIGHTS if site.has(k)]
    if site.has(SEQUENCE_LENGTHS):
        reads.append(operand(SEQUENCE_LENGTHS)[(batch,)])
    reads += [operand(k)[direction, batch, ALL] for k in range(FIRST_STATE, PEEPHOLES) if site.has(k)]
    whole = {axis for axis, index in enumerate(out) if index in together or axis not in {len(out) - 3, len(out) - 2}}
    steps = 1 if len(out) == 4 else site.shape(0)[0]  # of a last state each element is the end of a chain
    flops = 2 * steps * _GATES[site.node.op] * (site.shape(0)[2] + site.output_shape[-1])
    further = tuple(_by_state(len(kind.known_shape), direction, batch) for kind in site.outputs[1:])
    return with_whole_axes(site.node.op, out, reads, whole, flops, further)


def _by_state(rank: int, direction: Subscript, batch: Subscript) -> tuple[Subscript, ...]:
    places = {rank - 3: direction, rank - 2: batch}
    return tuple(places.get(axis, ALL) for axis in range(rank))


def localize_recurrent(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same layer; of two directions one, where the tile has one."""
    attributes = dict(site.node.attributes)
    (directions,) = region.axes[region.rank - 3].ranges
    if len(directions) < site.output_shape[-3]:
        attributes["direction"] = ("forward", "reverse")[directions.start]
        functions, count = attributes.get("activations"), _ACTIVATIONS[site.node.op]
        if isinstance(functions, tuple):
            attributes["activations"] = functions[directions.start * count : directions.stop * count]
    return (LocalNode(site.node.op, operands_of(site, reads), attributes, site.node.domain),)


register(OperatorRule(describe_recurrent, localize_recurrent), "LSTM", "GRU", "RNN")
register(OperatorRule(describe_recurrent, localize_recurrent), _QUANTIZING, domain="com.microsoft")

"""Recurrent layers: only the batch splits; time is a chain, and every hidden unit reads all others of the step before.

Y is [time, directions, batch, hidden], Y_h and Y_c are [directions, batch, hidden]: whichever are in use, the batch is last but one.
"""

from __future__ import annotations

from dataclasses import replace

from bbgrap.tdl.language import ALL, Description, Index, Subscript, operand
from bbgrap.tdl.operators.common import output_indices, wholes, with_whole_axes
from bbgrap.tdl.rule import OperatorRule, Site, register

OUTPUTS = {"LSTM": 3, "GRU": 2, "RNN": 2}
SEQUENCE_LENGTHS, FIRST_STATE, PEEPHOLES = 4, 5, 7


def describe_recurrent(site: Site) -> Description | None:
    """Y[t, d, b, h] or Y_h[d, b, h] = f(x[:, b, :], weights, state[:, b, :])."""
    if site.integer("layout", 0) or len(site.node.outputs) > OUTPUTS[site.node.op]:
        return None
    out = output_indices(site)
    batch = out[-2]
    reads = [operand(0)[ALL, batch, ALL], *wholes(site, (1, 2, 3))]
    if site.has(SEQUENCE_LENGTHS):
        reads.append(operand(SEQUENCE_LENGTHS)[(batch,)])
    reads += [operand(k)[ALL, batch, ALL] for k in range(FIRST_STATE, PEEPHOLES) if site.has(k)]
    reads += wholes(site, (PEEPHOLES,))
    found = with_whole_axes(site.node.op, out, reads, set(range(len(out))) - {len(out) - 2})
    further = tuple(_by_batch(len(kind.known_shape), batch) for kind in site.outputs[1:])
    return None if found is None else replace(found, extra=further)


def _by_batch(rank: int, batch: Index) -> tuple[Subscript, ...]:
    return tuple(batch if axis == rank - 2 else ALL for axis in range(rank))


register(OperatorRule(describe_recurrent), "LSTM", "GRU", "RNN")

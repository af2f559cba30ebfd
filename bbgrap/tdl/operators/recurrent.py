"""Recurrent layers: only the batch splits; time is a chain, and every hidden unit reads all others of the step before."""

from __future__ import annotations

from bbgrap.tdl.language import ALL, Description, operand
from bbgrap.tdl.operators.common import output_indices, wholes, with_whole_axes, yields_only
from bbgrap.tdl.rule import OperatorRule, Site, register

SEQUENCE_LENGTHS, FIRST_STATE, PEEPHOLES = 4, 5, 7


def describe_recurrent(site: Site) -> Description | None:
    """Y[t, d, b, h] or Y_h[d, b, h] = f(x[:, b, :], weights, state[:, b, :])."""
    if site.integer("layout", 0) or not any(yields_only(site, position) for position in range(3)):
        return None
    out = output_indices(site)
    batch = out[-2]
    reads = [operand(0)[ALL, batch, ALL], *wholes(site, (1, 2, 3))]
    if site.has(SEQUENCE_LENGTHS):
        reads.append(operand(SEQUENCE_LENGTHS)[(batch,)])
    reads += [operand(k)[ALL, batch, ALL] for k in range(FIRST_STATE, PEEPHOLES) if site.has(k)]
    reads += wholes(site, (PEEPHOLES,))
    return with_whole_axes(site.node.op, out, reads, set(range(len(out))) - {len(out) - 2})


register(OperatorRule(describe_recurrent), "LSTM", "GRU", "RNN")

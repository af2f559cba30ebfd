"""The forms of a model that are planned: as it is, and with operators that read all of a tensor taken apart so that they can be cut.

Machines that have the whole model keep the first form. The second has dynamic quantizers with their ranges apart
(`bbgrap.graph.dynamic_ranges`), with the same bits, and mixtures with their experts (`bbgrap.graph.divided_experts`, which says where
bits are others). Normalisations of maps whose statistics are partial sums (`bbgrap.graph.divided_norms`), attention without a mask
apart from its projections (`bbgrap.graph.divided_attention`), products of rows of several axes (`bbgrap.graph.divided_products`), and those
of training steps apart from what an update adds (`bbgrap.graph.step_products`) are left where a jump that counts depends on them, as other
partial sums are.
"""

from __future__ import annotations

from collections.abc import Collection

from bbgrap.graph import Graph
from bbgrap.graph.divided_attention import with_attention_apart
from bbgrap.graph.divided_experts import with_experts_apart
from bbgrap.graph.divided_norms import with_divided_norms
from bbgrap.graph.divided_products import with_products_apart
from bbgrap.graph.dynamic_ranges import with_ranges_apart
from bbgrap.graph.step_products import with_step_products
from bbgrap.tdl.bit_sensitive import bit_sensitive_nodes


def forms_of(graph: Graph) -> tuple[Graph, ...]:
    """Return a graph as it is, and with what can be cut then taken apart, if there is anything."""
    kept = bit_sensitive_nodes(graph)
    exact = with_experts_apart(with_ranges_apart(graph))
    rows = with_products_apart(with_attention_apart(exact, kept), kept)
    apart = with_step_products(with_divided_norms(rows, kept), kept)
    return (graph,) if apart is graph else (graph, apart)


def form_with(graph: Graph, nodes: Collection[str]) -> Graph:
    """Return the form of a graph that has nodes of just these names; the graph itself if there is none."""
    wanted = set(nodes)
    return next((form for form in forms_of(graph) if form.node_by_name.keys() == wanted), graph)

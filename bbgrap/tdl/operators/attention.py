"""Attention and rotary embeddings: batches, heads and (where no query must know its place) queries split; keys stay whole.

Query head h attends to key head `h // R` where R query heads share one. A tile's heads are computed in whole groups of R, and cropped.
With rank-3 operands heads and their elements share the last axis, so the unit is `R * D` elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.shapemap import ShapeMap
from bbgrap.tdl.language import ALL, OPAQUE_FLOPS, Access, Description, Index, IndexExpression, Subscript, operand
from bbgrap.tdl.operators.common import (
    Reads,
    broadcast,
    but,
    localize_units,
    output_indices,
    unit_of,
    wholes,
    with_whole_axes,
)
from bbgrap.tdl.rule import LocalNode, OperatorRule, Site, register, same_node

MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Heads:
    """How the heads of an attention lie in its operands and its output."""

    query: int
    """Number of query heads."""
    key: int
    """Number of key and value heads."""
    packed: bool
    """Rank 3: heads and their elements share the last axis."""
    unit: int
    """Elements of the output's head axis that share a key head, and are computed together."""

    @property
    def shared(self) -> int:
        """Query heads per key head."""
        return self.query // self.key

    @property
    def axis(self) -> int:
        """The output's axis along which the heads lie."""
        return 2 if self.packed else 1


def heads_of(site: Site) -> Heads:
    """Return the heads of an attention, of the standard or of onnxruntime."""
    query, out = site.shape(0), site.output_shape
    if len(query) == 4:
        keys = site.shape(1)[1]
        return Heads(query[1], keys, packed=False, unit=query[1] // keys)
    count = site.integer("q_num_heads", site.integer("num_heads", 1))
    keys = site.integer("kv_num_heads", count)
    return Heads(count, keys, packed=True, unit=out[2] // keys)


@dataclass(frozen=True, slots=True)
class AttentionReads:
    """Where in its operands one output element of an attention reads; built from the output's indices."""

    site: Site
    heads: Heads
    batch: Index
    query: Subscript
    group: IndexExpression | None
    """The number of the key head; None where heads are not split."""

    def rows(self, number: int, *, of_query: bool) -> Access:
        """Read queries (the element's own), or keys or values (all) of the group's heads."""
        count, per_group = (self.heads.query, self.heads.shared) if of_query else (self.heads.key, 1)
        rows, shape = self.query if of_query else ALL, self.site.shape(number)
        if len(shape) == 4:
            return operand(number)[self.batch, self.of_group(per_group), rows, ALL]
        return operand(number)[self.batch, rows, self.of_group(per_group * (shape[2] // count))]

    def of_group(self, size: int) -> Subscript:
        """Return the elements of the element's group, along an axis that has so many for each."""
        return ALL if self.group is None else self.group * size + Index(f"r{size}", size)

    def caches(self, count: int) -> tuple[tuple[Subscript, ...], ...]:
        """Return the subscripts of further outputs that hold keys or values of all words so far, [batch, key heads, words, elements]."""
        return ((self.batch, ALL if self.group is None else self.group, ALL, ALL),) * count

    def bias(self, number: int) -> Access:
        """Read a mask or bias that broadcasts to [batch, query heads, queries, keys]."""
        places: tuple[Subscript, ...] = (self.batch, self.of_group(self.heads.shared), self.query, ALL)
        shape = self.site.shape(number)
        tail = places[4 - len(shape) :]
        return operand(number)[tuple(0 if extent == 1 else place for place, extent in zip(tail, shape, strict=True))]


def attention_flops(keys: int) -> int:
    """Return the work of one output element: a product with every key, a softmax, and a product with every value."""
    return OPAQUE_FLOPS + 4 * keys


def attention_reads(site: Site, out: tuple[Index, ...], *, queries: bool, heads: bool) -> tuple[AttentionReads, set[int]]:
    """Return where it reads, and the output axes that stay whole; `queries` and `heads` tell whether they split."""
    form = heads_of(site)
    query_axis = 1 if form.packed else 2
    index = out[form.axis]
    group = (index if form.unit == 1 else index // form.unit) if heads else None
    fixed = set() if form.packed else {3}
    fixed |= (set() if queries else {query_axis}) | (set() if heads else {form.axis})
    return AttentionReads(site, form, out[0], out[query_axis] if queries else ALL, group), fixed


def describe_attention(site: Site) -> Description | None:
    """Y[b, h, s, :] = softmax(Q[b, h, s, :] · K[b, h // R, :, :] + mask) · V[b, h // R, :, :].

    With a past, keys and values of all words so far may be further outputs, split with their heads.
    """
    caches = len(site.node.outputs) - 1
    if caches not in (0, 2):
        return None
    knows_place = site.integer("is_causal", 0) or any(site.integer(f"{side}_window_size", -1) != -1 for side in ("left", "right"))
    out = output_indices(site)
    place, fixed = attention_reads(site, out, queries=not knows_place and not caches, heads=True)
    reads = [place.rows(0, of_query=True), place.rows(1, of_query=False), place.rows(2, of_query=False)]
    if site.has(3):
        reads.append(place.bias(3))
    reads += [place.rows(k, of_query=False) for k in (4, 5) if site.has(k)]
    if site.has(6):
        reads.append(operand(6)[(out[0],)])
    keys = sum(site.shape(k)[-2] for k in (1, 4) if site.has(k))
    return with_whole_axes("attention", out, reads, fixed, attention_flops(keys), place.caches(caches))


def localize_attention(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """The same attention with the heads of every group that the tile touches, then the tile's own."""
    form = heads_of(site)
    if form.unit == 1 and not form.packed:
        return same_node(site, region, reads)
    heads = {"q_num_heads": form.shared, "kv_num_heads": 1, "num_heads": form.shared}
    told = {name: of_group for name, of_group in heads.items() if name in site.node.attributes}
    return localize_units(site, region, reads, form.axis, form.unit, told)


def describe_multi_head_attention(site: Site) -> Description | None:
    """The form of onnxruntime: heads split if no bias, which holds those of queries, keys and values in a row, is added.

    With a past, keys and values of all words so far are further outputs, split with their heads. Keys and values of other words than the
    queries' may come by head, [batch, heads, words, elements].
    """
    caches = len(site.node.outputs) - 1
    if caches not in (0, 2) or any(site.has(k) for k in (8, 9)) or not (site.has(1) and site.has(2)):
        return None
    if any(site.has(k) for k in (6, 7)) and not caches:
        return None  # the kernel reads no past then
    out = output_indices(site)
    if [len(site.shape(k)) for k in range(3)] not in ([3, 3, 3], *([] if caches else [[3, 4, 4]])):
        return None
    place, fixed = attention_reads(site, out, queries=not site.integer("unidirectional", 0) and not caches, heads=not site.has(3))
    reads = [place.rows(0, of_query=True), place.rows(1, of_query=False), place.rows(2, of_query=False), *wholes(site, (3,))]
    if site.has(4):
        padding = site.shape(4)
        if padding[0] != out[0].extent:
            return None
        along: tuple[Subscript, ...] = (out[0], ALL) if len(padding) < 3 else (out[0], place.query, ALL)
        reads.append(operand(4)[along[: len(padding)]])
    if site.has(5):
        reads.append(place.bias(5))
    reads += [place.rows(k, of_query=False) for k in (6, 7) if site.has(k)]
    keys = sum(site.shape(k)[-2] for k in (1, 6) if site.has(k))
    return with_whole_axes("attention", out, reads, fixed, attention_flops(keys), place.caches(caches))


def describe_fused_attention(site: Site) -> Description | None:
    """The `Attention` of onnxruntime, which also computes queries, keys and values: only the batch splits."""
    if site.has(4) or site.has(6):
        return None
    out = output_indices(site)
    reads = [operand(0)[out[0], ALL, ALL], *wholes(site, (1, 2))]
    if site.has(3):
        mask = site.shape(3)
        if len(mask) not in (1, 2, 3) or mask[0] != out[0].extent:
            return None  # ends and begins in one row, or a mask per image: told apart by extents alone
        reads.append(operand(3)[(out[0], *(ALL,) * (len(mask) - 1))])
    if site.has(5):
        bias = site.shape(5)
        reads.append(operand(5)[0 if bias[0] == 1 else out[0], ALL, ALL, ALL])
    words, features = site.shape(0)[1:]
    return with_whole_axes("attention", out, reads, {1, 2}, attention_flops(words) + 6 * features)


def _turned(site: Site, out: tuple[Index, ...], fixed: set[int]) -> tuple[Access, set[int]]:
    """Read the elements that are turned together, and return the axes that stay whole; those of packed heads do not, they are cropped."""
    last, size = len(out) - 1, _packed_head(site)
    place = list(but(out, fixed | {last}))
    if size:
        place[last] = unit_of(out[last], size)
    return operand(0)[tuple(place)], fixed if size else fixed | {last}


def _packed_head(site: Site) -> int:
    """Return the size of a head of an embedding whose heads share the last axis; 0 where they have an axis of their own."""
    if len(site.output_shape) != 3:
        return 0
    count = site.integer("num_heads", 0)
    if site.node.domain and not site.integer("rotary_embedding_dim", 0):
        return 2 * site.shape(2)[-1]
    return site.output_shape[2] // count if count else 0


def describe_rotary(site: Site) -> Description | None:
    """Y[b, h, s, :] = X[b, h, s, :] turned by the angles of position (b, s)."""
    out = output_indices(site)
    b, s = out[0], out[len(out) - 2]
    own, fixed = _turned(site, out, set())
    if site.has(3):
        angles = [*wholes(site, (1, 2)), operand(3)[broadcast((b, s), site.shape(3))]]
    else:
        angles = [operand(k)[(*broadcast((b, s), site.shape(k)[:-1]), ALL)] for k in (1, 2)]
    return with_whole_axes("rotate", out, [own, *angles], fixed)


def describe_microsoft_rotary(site: Site) -> Description | None:
    """The form of onnxruntime: positions come second, or a single one for the first element of a sequence; of pictures there are three."""
    out = output_indices(site)
    if site.integer("is_packed_batching", 0):
        return None
    query_axis = len(out) - 2
    each = len(site.shape(1)) > 1
    streams: tuple[Subscript, ...] = (ALL,) * (len(site.shape(1)) - 2)
    positions = operand(1)[(*streams, out[0], out[query_axis])] if each else operand(1)[(ALL,)]
    own, fixed = _turned(site, out, set() if each else {query_axis})
    return with_whole_axes("rotate", out, [own, positions, *wholes(site, (2, 3))], fixed)


def localize_rotary(site: Site, region: ShapeMap, reads: Reads) -> tuple[LocalNode, ...]:
    """Turn the heads that the tile touches, then crop."""
    size, told = _packed_head(site), {"num_heads": 1} if site.integer("num_heads", 0) else {}
    return localize_units(site, region, reads, 2, size, told) if size else same_node(site, region, reads)


register(OperatorRule(describe_attention, localize_attention), "Attention")
register(OperatorRule(describe_multi_head_attention, localize_attention), "MultiHeadAttention", domain=MICROSOFT)
register(OperatorRule(describe_fused_attention), "Attention", domain=MICROSOFT)
register(OperatorRule(describe_rotary, localize_rotary), "RotaryEmbedding")
register(OperatorRule(describe_microsoft_rotary, localize_rotary), "RotaryEmbedding", "MRotaryEmbedding", domain=MICROSOFT)

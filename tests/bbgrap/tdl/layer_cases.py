"""Random calls of normalisations, recurrent layers and attention."""

from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from bbgrap.graph.types import Array, Attribute
from tests.bbgrap.tdl.verifier import Case
from tests.bbgrap.tdl.window_cases import Draw, random_of
from tests.strategies import shapes

MICROSOFT = "com.microsoft"
Cases = dict[str, Callable[[], st.SearchStrategy[Case]]]


def floats(draw: Draw, *shape: int) -> Array:
    """Return numbers between -1 and 1."""
    return random_of(draw).uniform(-1, 1, shape).astype(np.float32)


@st.composite
def _layer_norm(draw: Draw, op: str) -> Case:
    shape = draw(shapes(least=2, most=4, extent=4))
    axis = draw(st.integers(1, len(shape) - 1))
    scale = shape[axis:]
    biases = (floats(draw, *scale),) if op == "LayerNormalization" and draw(st.booleans()) else ()
    attributes: dict[str, Attribute] = {"axis": axis - len(shape) * draw(st.booleans()), "epsilon": 1e-3}
    opset = 23 if op == "RMSNormalization" else 18
    return Case(op, (floats(draw, *shape), floats(draw, *scale), *biases), attributes, opset=opset, exact=False, loose=None)


@st.composite
def _skip_norm(draw: Draw, op: str) -> Case:
    batch, length, size = draw(st.tuples(*[st.integers(1, 4)] * 3))
    skip = draw(st.sampled_from(((batch, length, size), (1, length, size), (length, size))))
    vectors = [floats(draw, size) for _ in range(draw(st.integers(1, 3 if op == "SkipLayerNormalization" else 2)))]
    operands = (floats(draw, batch, length, size), floats(draw, *skip), *vectors)
    further = (3,) if draw(st.booleans()) else ()
    return Case(op, operands, {"epsilon": 1e-3}, exact=False, loose=None, domain=MICROSOFT, further=further)


@st.composite
def embedding(draw: Draw) -> Case:
    """EmbedLayerNormalization with and without segments, a mask and places; how many words count and the sum may be used, too."""
    batch, length, size = draw(st.tuples(*[st.integers(1, 4)] * 3))
    random, segmented = random_of(draw), draw(st.booleans())
    words, segments, mask = (random.integers(0, below, (batch, length)).astype(np.int32) for below in (6, 2, 2))
    places = random.integers(0, 5, (draw(st.sampled_from((1, batch))), length)).astype(np.int32)
    tables = [floats(draw, 6, size), floats(draw, 5, size), floats(draw, 2, size) if segmented else None]
    vectors = floats(draw, size), floats(draw, size)
    operands: list[Array | None] = [words, segments if segmented else None, *tables, *vectors]
    operands += [mask if draw(st.booleans()) else None, places if draw(st.booleans()) else None]
    while operands[-1] is None:
        operands.pop()
    parameters, below = frozenset((2, 3, 4, 5, 6)), {0: 6, 1: 2, 7: 2, 8: 5}
    return Case(
        "EmbedLayerNormalization", tuple(operands), {"epsilon": 1e-3}, parameters, exact=False, loose=None, domain=MICROSOFT,
        below=below, further=draw(st.sampled_from(((1,), (1, 2)))),
    )  # fmt: skip


@st.composite
def instance_norm(draw: Draw) -> Case:
    """InstanceNormalization in 1 to 2 dimensions."""
    shape = draw(shapes(least=3, most=4, extent=4))
    return Case("InstanceNormalization", (floats(draw, *shape), *(floats(draw, shape[1]) for _ in "ab")), exact=False, loose=None)


@st.composite
def lp_norm(draw: Draw) -> Case:
    """LpNormalization by either norm."""
    shape = draw(shapes(least=2, most=4, extent=4))
    attributes: dict[str, Attribute] = {"axis": draw(st.integers(-len(shape), len(shape) - 1)), "p": draw(st.integers(1, 2))}
    return Case("LpNormalization", (floats(draw, *shape),), attributes, exact=False, loose=None)


@st.composite
def mean_variance(draw: Draw) -> Case:
    """MeanVarianceNormalization over some axes."""
    shape = draw(shapes(least=4, most=4, extent=4))
    axes = draw(st.lists(st.integers(0, 3), unique=True, min_size=1, max_size=3).map(tuple))
    return Case("MeanVarianceNormalization", (floats(draw, *shape),), {"axes": axes}, opset=13, exact=False, loose=None)


@st.composite
def _recurrent(draw: Draw, op: str) -> Case:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    length, batch, size, hidden = draw(st.tuples(*[st.integers(1, 4)] * 4))
    direction = draw(st.sampled_from(("forward", "reverse", "bidirectional")))
    ways = 1 + (direction == "bidirectional")
    weights = (floats(draw, ways, gates * hidden, size), floats(draw, ways, gates * hidden, hidden))
    bias = floats(draw, ways, 2 * gates * hidden) if draw(st.booleans()) else None
    lengths = random_of(draw).integers(1, length + 1, batch).astype(np.int32) if draw(st.booleans()) else None
    states = [floats(draw, ways, batch, hidden) if draw(st.booleans()) else None for _ in range(1 + (op == "LSTM"))]
    peepholes = [floats(draw, ways, 3 * hidden)] if op == "LSTM" and draw(st.booleans()) else []
    operands = [floats(draw, length, batch, size), *weights, bias, lengths, *states, *peepholes]
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Attribute] = {"hidden_size": hidden, "direction": direction}
    if draw(st.booleans()):
        functions = st.sampled_from(("Relu", "Tanh", "Sigmoid"))
        attributes["activations"] = tuple(draw(functions) for _ in range(ways * {"LSTM": 3, "GRU": 2, "RNN": 1}[op]))
    position = draw(st.integers(0, 2 if op == "LSTM" else 1))
    return Case(op, tuple(operands), attributes, opset=14, exact=False, loose=None, position=position, below={4: length})


def _mask(draw: Draw, batch: int, heads: int, queries: int, keys: int) -> Array | None:
    full = (batch, heads, queries, keys)
    rank = draw(st.sampled_from((0, 2, 3, 4)))
    if not rank:
        return None
    shape = tuple(1 if draw(st.integers(0, 2)) == 0 and k < 2 else e for k, e in enumerate(full))[4 - rank :]
    return floats(draw, *shape)


@st.composite
def attention(draw: Draw) -> Case:
    """Attention: rank 3 and 4, shared key heads, masks of every rank, causal or not; with a past, of which all words are put out."""
    batch, keys_heads, shared, queries, keys = draw(st.tuples(*[st.integers(1, 3)] * 5))
    size, value_size = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    heads = keys_heads * shared
    causal = draw(st.integers(0, 3)) == 0
    sizes = [(heads, queries, size), (keys_heads, keys, size), (keys_heads, keys, value_size)]
    packed = draw(st.booleans())
    operands: list[Array | None] = [floats(draw, batch, s, h * d) if packed else floats(draw, batch, h, s, d) for h, s, d in sizes]
    attributes: dict[str, Attribute] = {"q_num_heads": heads, "kv_num_heads": keys_heads} if packed else {}
    past = draw(st.sampled_from((0, 0, 2)))
    operands += [_mask(draw, batch, heads, queries, keys + past)]
    operands += [floats(draw, batch, keys_heads, past, d) for d in (size, value_size)] if past else []
    several = frozenset((0, 1 if packed else 2)) | (frozenset() if packed or shared > 1 else frozenset((1,)))
    while operands[-1] is None:
        operands.pop()
    return Case(
        "Attention", tuple(operands), attributes | {"is_causal": int(causal)},
        opset=23, exact=False, loose=None, several_ranges=several, further=(1, 2) if past else (),
    )  # fmt: skip


@st.composite
def multi_head_attention(draw: Draw) -> Case:
    """MultiHeadAttention with and without bias, padding mask and attention bias; keys and values in rows, or by head."""
    batch, heads, queries, keys, size = draw(st.tuples(*[st.integers(1, 3)] * 5))
    width, past = heads * size, draw(st.sampled_from((0, 0, 2)))
    keys = queries if past else keys
    bias = floats(draw, 3 * width) if draw(st.booleans()) else None
    padding = None
    if draw(st.booleans()):
        full = (batch, keys + past) if draw(st.booleans()) else (batch, queries, keys + past)
        padding = np.ones(full, np.int32)
        padding[..., random_of(draw).integers(0, keys + past) :] = 0
        padding[..., 0] = 1
    extra = floats(draw, draw(st.sampled_from((1, batch))), draw(st.sampled_from((1, heads))), queries, keys + past)
    by_head = not past and draw(st.booleans())
    others = [floats(draw, batch, heads, keys, size) if by_head else floats(draw, batch, keys, width) for _ in "kv"]
    operands = [floats(draw, batch, queries, width), *others, bias, padding, extra if draw(st.booleans()) else None]
    operands += [floats(draw, batch, heads, past, size) for _ in "kv"] if past else []
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Attribute] = {"num_heads": heads, "unidirectional": int(draw(st.integers(0, 3)) == 0)}
    assume(not attributes["unidirectional"] or queries == keys)
    several = frozenset((0, 1))
    return Case(
        "MultiHeadAttention", tuple(operands), attributes, exact=False, loose=None, several_ranges=several, domain=MICROSOFT,
        below={4: 2}, further=(1, 2) if past else (),
    )  # fmt: skip


@st.composite
def fused_attention(draw: Draw) -> Case:
    """onnxruntime's Attention with and without a mask."""
    batch, heads, length, size = draw(st.tuples(*[st.integers(1, 3)] * 4))
    width = heads * size
    lengths = np.full(batch, length, np.int32) if draw(st.booleans()) else np.ones((batch, length), np.int32)
    mask = (lengths,) if draw(st.booleans()) and length != batch else ()
    operands = (floats(draw, batch, length, width), floats(draw, width, 3 * width), floats(draw, 3 * width), *mask)
    return Case("Attention", operands, {"num_heads": heads}, exact=False, loose=None, domain=MICROSOFT, below={3: 1})


@st.composite
def rotary(draw: Draw) -> Case:
    """RotaryEmbedding in rank 3 and 4, with positions or a cache per position."""
    batch, heads, length, half = draw(st.tuples(*[st.integers(1, 3)] * 4))
    packed = draw(st.booleans())
    x = floats(draw, batch, length, heads * 2 * half) if packed else floats(draw, batch, heads, length, 2 * half)
    attributes: dict[str, Attribute] = {"interleaved": draw(st.integers(0, 1))} | ({"num_heads": heads} if packed else {})
    if draw(st.booleans()):
        operands: tuple[Array, ...] = (x, *(floats(draw, batch, length, half) for _ in "cs"))
    else:
        operands = (x, *(floats(draw, 5, half) for _ in "cs"), random_of(draw).integers(0, 5, (batch, length)))
    several = frozenset((0, 1) if packed else range(4))
    return Case("RotaryEmbedding", operands, attributes, opset=23, exact=False, loose=None, below={3: 5}, several_ranges=several)


@st.composite
def microsoft_rotary(draw: Draw) -> Case:
    """onnxruntime's RotaryEmbedding, with positions or the first one."""
    batch, heads, length, half = draw(st.tuples(*[st.integers(1, 3)] * 4))
    packed, each = draw(st.booleans()), draw(st.booleans())
    x = floats(draw, batch, length, heads * 2 * half) if packed else floats(draw, batch, heads, length, 2 * half)
    positions = random_of(draw).integers(0, 5, (batch, length)) if each else np.array([1])
    operands = (x, positions, *(floats(draw, 8, half) for _ in "cs"))
    told = packed and draw(st.booleans())
    attributes: dict[str, Attribute] = {"num_heads": heads} if told else {}
    if told and draw(st.booleans()):
        attributes["rotary_embedding_dim"] = 2 * half
    several = frozenset((0, 1) if packed else range(4))
    return Case("RotaryEmbedding", operands, attributes, exact=False, loose=None, domain=MICROSOFT, below={1: 5}, several_ranges=several)


@st.composite
def group_query(draw: Draw) -> Case:
    """GroupQueryAttention with a cache that grows or has room, places turned or not, windows, biases and sinks."""
    batch, groups, shared, new, past = draw(st.tuples(*[st.integers(1, 3)] * 4, st.integers(0, 4)))
    size, total = 16, past + new
    heads = groups * shared
    room = draw(st.sampled_from((past, past, total, total + 3)))
    assume(batch == 1 or new == 1 or not past)  # the kernel takes no others
    rows = [floats(draw, batch, new, count * size) for count in (heads, groups, groups)]
    caches = [floats(draw, batch, groups, room, size) for _ in "kv"]
    lengths = np.full(batch, total - 1, np.int32)
    if new == 1 and past:  # words of sequences of unequal length
        lengths = random_of(draw).integers(0, total, batch).astype(np.int32)
        lengths[0] = total - 1
    if draw(st.booleans()):
        lengths = lengths[:, None]  # as exporters write it, whose sum over a mask keeps its axis
    turns = draw(st.booleans())
    angles = [floats(draw, total + 2, size // 2) for _ in "cs"] if turns else [None, None]
    bias = floats(draw, draw(st.sampled_from((1, batch))), draw(st.sampled_from((1, heads))), new, total) if draw(st.booleans()) else None
    sink = floats(draw, heads) if draw(st.booleans()) else None
    operands = [*rows, *caches, lengths, np.array(total, np.int32), *angles, None, bias, sink]
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Attribute] = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": int(turns)}
    attributes["local_window_size"] = draw(st.sampled_from((-1, -1, 2)))
    return Case(
        "GroupQueryAttention", tuple(operands), attributes, parameters=frozenset((5, 6)), exact=False, loose=None,
        several_ranges=frozenset((0,)), domain=MICROSOFT, further=(1, 2),
    )  # fmt: skip


LAYERS: Cases = {
    "Attention": attention,
    "InstanceNormalization": instance_norm,
    "LpNormalization": lp_norm,
    "MeanVarianceNormalization": mean_variance,
    "RotaryEmbedding": rotary,
    **{op: partial(_layer_norm, op) for op in ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")},
    **{op: partial(_recurrent, op) for op in ("GRU", "LSTM", "RNN")},
}
MICROSOFT_LAYERS: Cases = {
    "Attention": fused_attention,
    "EmbedLayerNormalization": embedding,
    "GroupQueryAttention": group_query,
    "MultiHeadAttention": multi_head_attention,
    "RotaryEmbedding": microsoft_rotary,
    **{op: partial(_skip_norm, op) for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
}

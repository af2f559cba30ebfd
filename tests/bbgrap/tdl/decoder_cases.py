"""Random calls of what language models have beside attention: states of fixed size, experts, tables of few bits."""

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from bbgrap.graph.divided_experts import CHOSEN_EXPERTS, OWN_DOMAIN
from bbgrap.graph.types import Array, Attribute
from tests.bbgrap.tdl.layer_cases import MICROSOFT, floats
from tests.bbgrap.tdl.verifier import Case, attributes_of
from tests.bbgrap.tdl.window_cases import Draw, random_of

in_domain = partial(Case, domain=MICROSOFT, exact=False, loose=None)


@st.composite
def causal_convolution(draw: Draw) -> Case:
    """Channels first or last, with and without a state that was."""
    batch, channels, length = draw(st.tuples(*[st.integers(1, 4)] * 3))
    taps, last = draw(st.integers(2, 4)), draw(st.booleans())

    def of(words: int) -> Array:
        return floats(draw, batch, words, channels) if last else floats(draw, batch, channels, words)

    operands = [of(length), floats(draw, channels, 1, taps), floats(draw, channels) if draw(st.booleans()) else None]
    dilation = draw(st.integers(1, 2))
    operands += [of((taps - 1) * dilation)] if draw(st.booleans()) else []
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Attribute] = {"activation": draw(st.sampled_from(("silu", "none")))} | ({"channels_last": 1} if last else {})
    attributes |= {"dilation": dilation}
    return in_domain("CausalConvWithState", tuple(operands), attributes, further=(1,))


@st.composite
def gate(draw: Draw) -> Case:
    """Decays, with and without update rates."""
    shape = draw(st.tuples(*[st.integers(1, 4)] * 3))
    rate = (floats(draw, *shape),) if draw(st.booleans()) else ()
    operands = (floats(draw, *shape), floats(draw, shape[2]), floats(draw, shape[2]), *rate)
    return in_domain("LinearAttentionGate", operands, further=(1,) if rate else ())


@st.composite
def linear_attention(draw: Draw) -> Case:
    """Every rule of update; heads of queries that share values, or the other way round; decays of a head or an element."""
    batch, words, groups = draw(st.tuples(*[st.integers(1, 3)] * 3))
    shared = draw(st.integers(1, 3))
    queries, values = (groups * shared, groups) if draw(st.booleans()) else (groups, groups * shared)
    keys = draw(st.sampled_from((groups, values))) if values >= queries else values
    of_key, of_value = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rule = draw(st.sampled_from(("linear", "gated", "delta", "gated_delta")))
    operands: list[Array | None] = [floats(draw, batch, words, heads * of_key) for heads in (queries, keys)]
    operands.append(floats(draw, batch, words, values * of_value))
    operands.append(floats(draw, batch, values, of_key, of_value) if draw(st.booleans()) else None)
    each = draw(st.sampled_from((1, of_key)))
    operands.append(-abs(floats(draw, batch, words, values * each)) if "gated" in rule else None)
    operands.append(abs(floats(draw, batch, words, draw(st.sampled_from((1, values))))) if "delta" in rule else None)
    while operands[-1] is None:
        operands.pop()
    attributes: dict[str, Attribute] = {"q_num_heads": queries, "kv_num_heads": values, "update_rule": rule}
    return in_domain("LinearAttention", tuple(operands), attributes, several_ranges=frozenset((0,)), further=(1,))


@st.composite
def gated_norm(draw: Draw) -> Case:
    """Norms of one group or several along the last axis."""
    batch, words, groups, size = draw(st.tuples(*[st.integers(1, 4)] * 4))
    operands = (floats(draw, batch, words, groups * size), floats(draw, size), floats(draw, batch, words, groups * size))
    attributes: dict[str, Attribute] = {"activation": draw(st.sampled_from(("silu", "sigmoid"))), "epsilon": 1e-3}
    return in_domain("GatedRMSNorm", operands, attributes, several_ranges=frozenset((0, 1)))


@st.composite
def gated_add(draw: Draw) -> Case:
    """A sum of which one part has a factor in every row."""
    batch, words, size = draw(st.tuples(*[st.integers(1, 4)] * 3))
    return in_domain("GatedAdd", (floats(draw, batch, words, size), floats(draw, batch, words, size), floats(draw, batch, words, 1)))


@st.composite
def rotary_of_pictures(draw: Draw) -> Case:
    """Three positions of a word, in sections or interleaved."""
    batch, heads, length = draw(st.tuples(*[st.integers(1, 3)] * 3))
    half, packed = 6, draw(st.booleans())
    x = floats(draw, batch, length, heads * 2 * half) if packed else floats(draw, batch, heads, length, 2 * half)
    operands = (x, random_of(draw).integers(0, 5, (3, batch, length)), *(floats(draw, 8, half) for _ in "cs"))
    attributes: dict[str, Attribute] = {"mrope_section": (2, 2, 2), "mrope_layout": draw(st.integers(0, 1))}
    if packed:
        attributes |= {"num_heads": heads} | ({"rotary_embedding_dim": 2 * half} if draw(st.booleans()) else {})
    several = frozenset((0, 1) if packed else range(4))
    return in_domain("MRotaryEmbedding", operands, attributes, below={1: 5}, several_ranges=several)


def _words(draw: Draw, size: int) -> tuple[Array, int]:
    """Return words of one row or of several sequences, and how many they are."""
    batch, length = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = (batch * length, size) if draw(st.booleans()) else (batch, length, size)
    return floats(draw, *shape), batch * length


def _activation(draw: Draw) -> dict[str, Attribute]:
    name = draw(st.sampled_from(("relu", "gelu", "silu", "swiglu")))
    fused: dict[str, Attribute] = {"swiglu_fusion": 1, "activation_alpha": 1.0} if name == "swiglu" else {}
    return {"activation_type": name, "normalize_routing_weights": draw(st.integers(0, 1)), **fused}


@st.composite
def experts(draw: Draw) -> Case:
    """MoE of every activation, with and without biases."""
    size, inner, count = draw(st.tuples(*[st.integers(1, 4)] * 3))
    x, words = _words(draw, size)
    attributes = _activation(draw) | {"k": draw(st.integers(1, count))}
    first = inner * (1 + (attributes["activation_type"] == "swiglu"))
    biases = (floats(draw, count, first), floats(draw, count, size)) if draw(st.booleans()) else (None, None)
    operands = [x, floats(draw, words, count), floats(draw, count, first, size), biases[0], floats(draw, count, size, inner), biases[1]]
    while operands[-1] is None:
        operands.pop()
    return in_domain("MoE", tuple(operands), attributes, parameters=frozenset(range(2, 6)))


@st.composite
def experts_of_few_bits(draw: Draw) -> Case:
    """QMoE of 4 or 8 bits, with scales of a row."""
    size, inner, count, bits = 32, 16, draw(st.integers(1, 3)), draw(st.sampled_from((4, 8)))
    x, words = _words(draw, size)
    random, packed = random_of(draw), 8 // bits
    attributes = _activation(draw) | {"k": draw(st.integers(1, count)), "expert_weight_bits": bits}
    first = inner * (1 + (attributes["activation_type"] == "swiglu"))
    shapes = ((count, first, size), (count, size, inner))
    weights = [random.integers(0, 256, (*shape[:2], shape[2] // packed)).astype(np.uint8) for shape in shapes]
    scales = [random.uniform(0.0005, 0.001, shape[:2]).astype(np.float32) for shape in shapes]
    operands: tuple[Array | None, ...] = (x, floats(draw, words, count), weights[0], scales[0], None, weights[1], scales[1])
    if draw(st.booleans()):  # weights of answers besides the scores by which experts are chosen
        operands = (*operands, *[None] * 7, abs(floats(draw, words, count)))
    return in_domain("QMoE", operands, attributes, parameters=frozenset((2, 3, 5, 6)))


def _defined(operands: tuple[Array | None, ...], attributes: dict[str, Attribute], op: str) -> tuple[onnx.NodeProto, ...]:
    """Return what looking experts up is: one mixture of each word for each place, with nearly no score but that of the expert asked."""
    x, numbers, experts = operands[0], operands[1], operands[2]
    assert x is not None
    assert numbers is not None
    assert experts is not None
    count, rows = experts.shape[0], numbers.size
    constants = {"depth": np.array(count), "scores": np.array([-1e4, 0], np.float32), "one": np.array([1])}
    constants |= {"places": np.array([1, numbers.shape[1], 1]), "rows": np.array([rows, x.shape[1]])}
    constants |= {"chosen": np.array([rows, count]), "shape": np.array([*numbers.shape, x.shape[1]])}
    weights = ["" if array is None else f"x{number}" for number, array in enumerate(operands)][2:]
    return (
        *(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)) for name, array in constants.items()),
        helper.make_node("Unsqueeze", ["x0", "one"], ["apart"]),
        helper.make_node("Expand", ["apart", "places"], ["repeated"]),
        helper.make_node("Reshape", ["repeated", "rows"], ["words"]),
        helper.make_node("OneHot", ["x1", "depth", "scores"], ["shares"]),
        helper.make_node("Reshape", ["shares", "chosen"], ["asking"]),
        helper.make_node(op, ["words", "asking", *weights], ["answers"], domain=MICROSOFT, **attributes_of(attributes)),
        helper.make_node("Reshape", ["answers", "shape"], ["y"]),
    )


@st.composite
def chosen_experts(draw: Draw) -> Case:
    """Experts that are looked up, some by several words, some by none: of floats or of few bits."""
    mixture = draw(experts() | experts_of_few_bits())
    x, *others = mixture.operands
    assert x is not None
    assert mixture.operands[2] is not None
    words, count = x.reshape(-1, x.shape[-1]), mixture.operands[2].shape[0]
    numbers = random_of(draw).integers(0, count, (len(words), draw(st.integers(1, 3))))
    further = others[1:-1] if len(others) > 10 else others[1:]  # but weights of answers, which are mixed later
    while further[-1] is None:
        further.pop()
    operands = (words, numbers, *further)
    attributes = {**mixture.attributes, "k": 1}
    return Case(
        CHOSEN_EXPERTS, operands, attributes, parameters=mixture.parameters, domain=OWN_DOMAIN, exact=False, loose=None,
        below={1: count}, definition=_defined(operands, attributes, mixture.op),
    )  # fmt: skip


@st.composite
def table_of_few_bits(draw: Draw) -> Case:
    """GatherBlockQuantized of bytes, with and without zero points."""
    rows, blocks, bits = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.sampled_from((4, 8)))
    size, random = 16, random_of(draw)
    data = random.integers(0, 256, (rows, blocks * size * bits // 8)).astype(np.uint8)
    indices = random.integers(-rows, rows, draw(st.sampled_from(((3,), (2, 3), ())))).astype(np.int64)
    zeros = (random.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8),) if draw(st.booleans()) else ()
    operands = (data, indices, random.uniform(0.5, 1, (rows, blocks)).astype(np.float32), *zeros)
    attributes: dict[str, Attribute] = {"gather_axis": 0, "quantize_axis": 1, "block_size": size, "bits": bits}
    return in_domain("GatherBlockQuantized", operands, attributes, parameters=frozenset((0, 2, 3)), below={1: rows})


Cases = dict[str, Callable[[], st.SearchStrategy[Case]]]

MICROSOFT_DECODERS: Cases = {
    "CausalConvWithState": causal_convolution,
    "GatedAdd": gated_add,
    "GatedRMSNorm": gated_norm,
    "GatherBlockQuantized": table_of_few_bits,
    "LinearAttention": linear_attention,
    "LinearAttentionGate": gate,
    "MRotaryEmbedding": rotary_of_pictures,
    "MoE": experts,
    "QMoE": experts_of_few_bits,
}
OWN_DECODERS: Cases = {CHOSEN_EXPERTS: chosen_experts}

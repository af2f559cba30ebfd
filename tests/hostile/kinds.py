"""Hostile models from seeds: the kinds of the review of trust, those that it names as not tried, and combinations of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from tests import hostile_models as models
from tests.hostile import large
from tests.hostile_models import KERNEL, body_of, branching
from tests.hostile_parts import DATA, add, outside, plain, relu, weight

Kind = Callable[[random.Random], ModelProto]

HUGE = (0, 1, 3, -1, 1 << 20, 1 << 31, 1 << 40, 1 << 62, -(1 << 62))
"""Sizes that somebody forgets to think of."""
WINDOWED = ("Conv", "ConvTranspose", "ConvInteger", "MaxPool", "AveragePool", "LpPool")


@dataclass(frozen=True)
class HostileModel:
    """A model's file, what it is, and what it is to be given: element types and shapes by input."""

    path: Path
    kind: str
    feeds: Mapping[str, tuple[int, tuple[int, ...]]]


def of_huge_weight(rng: random.Random) -> ModelProto:
    dims = [rng.choice(HUGE) for _ in range(rng.randint(1, 3))]
    return plain([add()], [weight(dims, bytes(rng.randint(0, 64)), rng.choice((1, 7, 10, 16, 9, 77, 8)))])


def of_wrong_type(rng: random.Random) -> ModelProto:
    code = rng.choice([code for code in TensorProto.DataType.values() if code])
    proto = plain([add()], [weight([4], bytes(rng.choice((4, 8, 16, 32))), code)])
    proto.graph.input[0].type.tensor_type.elem_type = rng.choice((code, 1, 99))
    return proto


def outside_of_bounds(rng: random.Random) -> ModelProto:
    entries = {
        "location": rng.choice(("w.bin", "w.bin", "../w.bin", "/etc/passwd", "model.onnx", ".", "", "w\0.bin", "/dev/zero")),
        "offset": rng.choice((0, 0, 16, 4096, 1 << 62, -1, "9" * 30)),
        "length": rng.choice((4096, 16, 0, 1 << 40, -4)),
    }
    return plain([add()], [outside(**entries)], [1024])


def recursive(rng: random.Random) -> ModelProto:
    length = rng.randint(1, 8)
    calls = [models.function(f"f{k}", f"f{(k + 1) % length}") for k in range(length)]
    return models.recursion_in_a_body() if rng.random() < 0.2 else models.with_functions(*calls)


def doubling(rng: random.Random) -> ModelProto:
    return models.doubling(rng.choice((2, 4, 8, 16, 28, 90, 300)), rng.choice((1, 2, 3, 100)))


def windowed(rng: random.Random) -> ModelProto:
    op = rng.choice(WINDOWED)
    attributes: dict[str, object] = {} if "Pool" not in op else {"kernel_shape": [rng.choice((0, 1, 3, 50_000, 1 << 40))]}
    for name in rng.sample(("pads", "strides", "dilations", "group", "kernel_shape", "output_padding"), rng.randint(1, 2)):
        value = rng.choice((0, -1, 2, 1 << 20, 1 << 31, 1 << 62))
        attributes[name] = value if name == "group" else [value] * (2 if name == "pads" else 1)
    node = helper.make_node(op, ["x", "k"] if "Pool" not in op else ["x"], ["z"], **attributes)
    match rng.randrange(3):
        case 0:
            return branching(body_of(node, weights=[KERNEL]))
        case 1:
            inside = [helper.make_node(op, ["a", "a"] if "Pool" not in op else ["a"], ["b"], **attributes)]
            made = helper.make_function("f", "f0", ["a"], ["b"], inside, [helper.make_opsetid("", 17)])
            return models.model([helper.make_node("f0", ["x"], ["y"], domain="f")], {"x": [1, 1, 4]}, ["y"], functions=[made])
    return plain([node, relu("z", "y")], [KERNEL], (1, 1, rng.choice((8, 1, 1000))))


def dividing(rng: random.Random) -> ModelProto:
    """Operators that divide by what they are told."""
    size = rng.choice((0, -1, 3, 1 << 40))
    nodes = (
        ("DepthToSpace", {"blocksize": size}, ["x"]),
        ("SpaceToDepth", {"blocksize": size}, ["x"]),
        ("InstanceNormalization", {"epsilon": 0.0}, ["x", "w", "w"]),
        ("Split", {"num_outputs": size} if rng.random() < 0.3 else {"axis": size}, ["x"]),
        ("LRN", {"size": size}, ["x"]),
        ("GroupNormalization", {"num_groups": size}, ["x", "w", "w"]),
        ("Attention", {"q_num_heads": size, "kv_num_heads": size}, ["x", "x", "x"]),
        ("Mod", {}, ["x", "zero"]),
        ("TopK", {"axis": size}, ["x", "zero"]),
    )
    op, attributes, inputs = rng.choice(nodes)
    weights = [weight([4], DATA[:4].tobytes()), numpy_helper.from_array(np.array([0]), "zero")]
    proto = plain([helper.make_node(op, inputs, ["y"], **attributes)], weights, (1, 4, 2, 2))
    proto.opset_import[0].version = rng.choice((17, 18, 21, 23))
    return proto


def looping(rng: random.Random) -> ModelProto:
    """Endless one time in ten: each of these takes until its deadline."""
    proto = models.endless()
    if rng.random() < 0.9:
        most = numpy_helper.from_array(np.array(rng.choice((0, 1, 100, 10_000))), "most")
        proto.graph.initializer.append(most)
        proto.graph.node[0].input[0] = "most"
    return proto


def sized(rng: random.Random) -> ModelProto:
    op = rng.choice(("ConstantOfShape", "Tile", "Expand", "Range", "Pad", "Reshape"))
    many = rng.choice((1, 2, 1 << 10, 1 << 27, 1 << 32, 1 << 40, 1 << 60, -1))
    match op:
        case "ConstantOfShape":
            return models.sized(op, [many] * rng.randint(1, 3))
        case "Range":
            return models.sized(op, 0, many, rng.choice((1, 1, 0, -1)))
        case "Expand":
            return models.sized(op, [many, 1])
        case "Pad":
            return models.sized(op, [many, rng.choice((0, many))])
    return models.sized(op, [many])


def computed(rng: random.Random) -> ModelProto:
    """What is large is computed of constants, or of shapes."""
    times = rng.choice((3, 10, 16, 20, 30, 60))
    match rng.randrange(4):
        case 0:
            return large.computed_by_doubling(times)
        case 1:
            return large.computed_by_doubling(times, shape=True)
        case 2:
            big = numpy_helper.from_array(np.array([rng.choice((4, 1 << 20, 1 << 28, 1 << 34))]), "n")
            nodes = [helper.make_node("Expand", ["w", "n"], ["c"]), helper.make_node("ReduceSum", ["c"], ["y"])]
            return plain(nodes, [weight([1], bytes(4)), big])
    size = rng.choice((4, 1 << 8, 1 << 13))
    column, row = (numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("a", (size, 1)), ("b", (1, size))))
    nodes = [helper.make_node("Mul", ["a", "b"], ["c"])]
    nodes += [helper.make_node("Concat", [f"c{k}" if k else "c"] * 2, [f"c{k + 1}"], axis=0) for k in range(rng.randint(1, 6))]
    return plain([*nodes, helper.make_node("ReduceMax", [nodes[-1].output[0]], ["y"])], [column, row])


def sized_by_input(rng: random.Random) -> ModelProto:
    proto = models.sized_by_input()
    if rng.random() < 0.5:
        proto.graph.node.insert(0, helper.make_node("Mul", ["x", "many"], ["n"]))
        proto.graph.initializer.append(numpy_helper.from_array(np.array([rng.choice((1, 1 << 20, 1 << 35, 1 << 60))]), "many"))
        proto.graph.node[1].input[0] = "n"
    return proto


def resized(rng: random.Random) -> ModelProto:
    scale = rng.choice((0.0, -1.0, 1e-30, 1e30, float("nan"), 1e9, 2.0))
    scales = numpy_helper.from_array(np.array([1, 1, scale], np.float32), "s")
    return plain([helper.make_node("Resize", ["x", "", "s"], ["y"])], [scales], (1, 1, 8))


def gathered(rng: random.Random) -> ModelProto:
    proto = models.gathering()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([rng.choice((3, -5, 10**15, -(2**63)))], np.int64), "n"))
    return proto


def circular(rng: random.Random) -> ModelProto:
    length = rng.randint(1, 50)
    return plain([*(relu(f"v{k}", f"v{(k + 1) % length}") for k in range(length)), relu("v0", "y")])


def duplicate(rng: random.Random) -> ModelProto:
    return plain([relu(), relu()] if rng.random() < 0.5 else [add()], [weight([4], bytes(16)), weight([4], bytes(16))])


def strange_operator(rng: random.Random) -> ModelProto:
    op, domain = rng.choice((("Magic", "f"), ("Magic", ""), ("Relu", "com.microsoft"), ("", ""), ("If", ""), ("Relu", "x" * 1000)))
    return plain([helper.make_node(op, ["x"], ["y"], domain=domain)])


def of_high_rank(rng: random.Random) -> ModelProto:
    return models.declared_rank(rng.choice((8, 9, 64, 65, 10_000)))


def of_long_names(rng: random.Random) -> ModelProto:
    name = "n" * rng.choice((100, 65_536, 65_537, 5_000_000))
    return plain([relu("x", name), relu(name, "y")])


def long_chain(rng: random.Random) -> ModelProto:
    return models.chain(rng.choice((10, 1000, 5000)))


def nested(rng: random.Random) -> ModelProto:
    return models.nested(rng.choice((1, 3, 8, 16, 17, 22)))


def not_a_number(rng: random.Random) -> ModelProto:
    values = np.array([rng.choice((np.nan, np.inf, -np.inf, 1e-45, 3e38)) for _ in range(4)], np.float32)
    nodes = [add(), helper.make_node(rng.choice(("Softmax", "Relu", "Sqrt", "Exp", "Identity")), ["y"], ["z"])]
    return models.model(nodes, {"x": [4]}, ["z"], [numpy_helper.from_array(values, "w")])


def texts(rng: random.Random) -> ModelProto:
    return models.strings(*rng.choice(((10, 10), (100, 100_000), (100_000, 1), (3_000_000, 0))))


def sparse(rng: random.Random) -> ModelProto:
    size = rng.choice((4, 1 << 10, 1 << 28, 1 << 40, -4))
    indices = [rng.choice((0, 3, -1, 1 << 40))]
    return models.with_sparse(*(models.sparse([size], indices=indices) for _ in range(rng.choice((1, 2, 8)))))


def counted(rng: random.Random) -> ModelProto:
    """More of something than any model has; few of these, for they are large files."""
    kinds = (
        lambda: models.chain(200_001),
        lambda: large.many_weights(200_001),
        lambda: large.many_attributes(400_001),
        lambda: large.sum_of_many(1_000_001),
        lambda: models.long_constant(10**7),
        lambda: models.long_attribute(10**7),
        lambda: large.with_metadata(10, 10_000_000),
        lambda: large.importing(1001),
        lambda: models.strings(2_100_000, 0),
        lambda: models.chain(1_000_000),
    )
    return rng.choice(kinds)()


def odd_attributes(rng: random.Random) -> ModelProto:
    node = relu()
    for _ in range(rng.randint(1, 5)):
        attribute = node.attribute.add(
            name=rng.choice(("axes", "alpha", "", "body")), type=rng.choice(AttributeProto.AttributeType.values())
        )
        attribute.i = rng.choice(HUGE)
    return plain([node])


def reshaping_input(rng: random.Random) -> ModelProto:
    """Inputs whose declared shapes are odd."""
    shape: list[int | str] = [rng.choice(("n", 0, -1, 4, 1 << 30, 1 << 50)) for _ in range(rng.randint(0, 3))]
    return models.model([rng.choice((relu(), helper.make_node("Add", ["x", "x"], ["y"])))], {"x": shape}, ["y"])


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        of_huge_weight, of_wrong_type, outside_of_bounds, recursive, doubling, windowed, dividing, looping, sized, computed, sized_by_input,
        resized, gathered, circular, duplicate, strange_operator, of_high_rank, of_long_names, long_chain, nested, not_a_number, texts,
        sparse, odd_attributes, reshaping_input,
    )
}  # fmt: skip
RARE_EVERY = 40
"""One model of so many is a large file."""


def make(seed: int, folder: Path) -> HostileModel:
    """Write the model of a seed into a folder: one of a kind, one of two kinds in a third of the cases, and damaged in a sixth."""
    rng = random.Random(seed)
    names = [list(KINDS)[seed % len(KINDS)]]
    if seed % RARE_EVERY == RARE_EVERY - 1:
        names = ["counted"]
        proto = counted(rng)
    else:
        proto = KINDS[names[0]](rng)
        if rng.random() < 1 / 3:
            names.append(rng.choice(list(KINDS)))
            proto = combined(proto, KINDS[names[-1]](rng))
    content = bytearray(proto.SerializeToString())
    if rng.random() < 1 / 6:
        names.append("damaged")
        damage(content, rng)
    (folder / "model.onnx").write_bytes(content)
    (folder / "w.bin").write_bytes(DATA.tobytes())
    return HostileModel(folder / "model.onnx", "+".join(names), feeds_of(proto, rng))


def combined(first: ModelProto, second: ModelProto) -> ModelProto:
    """Return a model that does what both do, beside each other."""
    try:
        other = onnx.compose.add_prefix(second, "second_")
    except Exception:
        return first
    proto = ModelProto()
    proto.CopyFrom(first)
    proto.opset_import[0].version = max(proto.opset_import[0].version, other.opset_import[0].version)
    for field in ("node", "initializer", "sparse_initializer", "input", "output"):
        getattr(proto.graph, field).extend(getattr(other.graph, field))
    proto.functions.extend(other.functions)
    return proto


def damage(content: bytearray, rng: random.Random) -> None:
    """Change some bytes, in place."""
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(content)) if content else 0
        match rng.randrange(4):
            case 0 if content:
                content[place] ^= 1 << rng.randrange(8)
            case 1:
                del content[place : place + rng.randint(1, 40)]
            case 2:
                content[place:place] = rng.randbytes(rng.randint(1, 6))
            case _:
                content[place:place] = content[place : place + rng.randint(1, 64)]


def feeds_of(proto: ModelProto, rng: random.Random) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return what a model is to be given: free sizes are small, and so are those that are too large to be given."""
    feeds = {}
    for value in proto.graph.input:
        tensor = value.type.tensor_type
        given = [(dim.HasField("dim_value") and 0 <= dim.dim_value <= 10_000_000, dim.dim_value) for dim in tensor.shape.dim]
        shape = tuple(size if is_given else rng.randint(1, 4) for is_given, size in given)
        if len(shape) > 64 or prod(shape) > 10_000_000:
            shape = (4,)
        feeds[value.name] = (tensor.elem_type if 0 < tensor.elem_type < 14 else 1, shape)
    return feeds

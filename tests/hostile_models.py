"""Small files that try to crash, hang or fill whoever reads them; each maker writes one into a folder and returns its path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from packaging.version import Version

from tests.hostile_parts import DATA, FLOAT, Hostile, Maker, add, info, model, of_any_type, outside, plain, relu, saved, weight

CHECKS_SIZES = Version(onnxruntime.__version__) >= Version("1.32")
"""Whether onnxruntime itself refuses sizes that overflow, and groups that do not divide the channels of a `ConvTranspose`."""


def beside(tensor: TensorProto, link: Callable[[Path, Path], object] | None = None) -> Maker:
    """Write a model with its weights in `w.bin`, which may be a link to a file elsewhere."""

    def make(folder: Path) -> Path:
        home = folder / "home"
        home.mkdir()
        target = home / "w.bin"
        if link is None:
            target.write_bytes(DATA.tobytes())
        else:
            (folder / "secret").write_bytes(DATA.tobytes())
            link(folder / "secret", target)
        return saved(lambda: plain([add()], [tensor], [1024]))(home)

    return make


def its_own_weights(folder: Path) -> Path:
    path = saved(lambda: plain([add()], [outside(location="model.onnx", length=4096), weight([1200], bytes(4800))], [1024]))(folder)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[1].name = "other"
    path.write_bytes(proto.SerializeToString())
    return path


def its_own_weights_by_link(folder: Path) -> Path:
    path = saved(lambda: plain([add()], [outside(location="link.bin", length=4096)], [1024]))(folder)
    proto = onnx.load(path, load_external_data=False)
    proto.doc_string = "x" * 5000
    path.write_bytes(proto.SerializeToString())
    (folder / "link.bin").symlink_to("model.onnx")
    return path


def sparse(dims: Sequence[int], values: int = 1, indices: Sequence[int] | None = None) -> onnx.SparseTensorProto:
    content = numpy_helper.from_array(np.ones(values, np.float32), "w")
    places = numpy_helper.from_array(np.array(range(values) if indices is None else indices, np.int64))
    return onnx.SparseTensorProto(values=content, indices=places, dims=dims)


def with_sparse(*tensors: onnx.SparseTensorProto) -> ModelProto:
    proto = plain([add()])
    for number, tensor in enumerate(tensors):
        tensor.values.name = f"w{number or ''}"
        proto.graph.sparse_initializer.append(tensor)
    return proto


def sparse_constant() -> ModelProto:
    node = helper.make_node("Constant", [], ["w"])
    node.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR).sparse_tensor.CopyFrom(sparse([1 << 40]))
    return plain([node, add()])


# --- functions ----------------------------------------------------------------------------------------------------------------


def function(name: str, *called: str) -> onnx.FunctionProto:
    names = ["a", *(f"v{k}" for k in range(len(called) - 1)), "b"]
    nodes = [
        helper.make_node(op, [source], [target], domain="" if op == "Relu" else "f")
        for op, source, target in zip(called, names, names[1:], strict=False)
    ]
    return helper.make_function("f", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)])


def with_functions(*functions: onnx.FunctionProto) -> ModelProto:
    call = helper.make_node(functions[0].name, ["x"], ["y"], domain="f")
    return model([call], {"x": [4]}, ["y"], functions=list(functions))


def doubling(levels: int, times: int = 2) -> ModelProto:
    calls = [function(f"f{k}", *[f"f{k + 1}"] * times) for k in range(levels)]
    return with_functions(*calls, function(f"f{levels}", "Relu"))


def recursion_in_a_body() -> ModelProto:
    inner = helper.make_node("f0", ["a"], ["c"], domain="f")
    body = helper.make_graph([inner], "b", [], [of_any_type("c")])
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    node = helper.make_node("If", ["yes"], ["b"], then_branch=body, else_branch=body)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return with_functions(helper.make_function("f", "f0", ["a"], ["b"], [yes, node], opsets))


# --- bodies -------------------------------------------------------------------------------------------------------------------


def branching(body: GraphProto, shape: Sequence[int] = (1, 1, 4)) -> ModelProto:
    yes = numpy_helper.from_array(np.array(True), "yes")
    node = helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=body)
    return plain([node], [yes], shape)


def body_of(*nodes: NodeProto, weights: Iterable[TensorProto] = ()) -> GraphProto:
    return helper.make_graph(list(nodes), "b", [], [of_any_type(nodes[-1].output[0])], list(weights))


def convolution(op: str, target: str = "y", **attributes: object) -> NodeProto:
    return helper.make_node(op, ["x", "k"], [target], **attributes)


KERNEL = numpy_helper.from_array(np.ones((1, 1, 3), np.float32), "k")


def convolving(op: str = "Conv", **attributes: object) -> ModelProto:
    return plain([convolution(op, **attributes)], [KERNEL], (1, 1, 8))


def convolving_inside(op: str) -> ModelProto:
    return branching(body_of(convolution(op, "z", group=0), weights=[KERNEL]))


def transposing_much(shape: Sequence[int], kernel: Sequence[int]) -> ModelProto:
    weight = TensorProto(name="k", dims=[1, 1, *kernel], data_type=FLOAT, raw_data=bytes(4 * int(np.prod(kernel))))
    return plain([convolution("ConvTranspose")], [weight], shape)


def pooling_much() -> ModelProto:
    return plain([helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[50_000], ceil_mode=1)], shape=(1, 1, 10_000_000))


def attending() -> ModelProto:
    proto = plain([helper.make_node("Attention", ["x", "x", "x"], ["y"], q_num_heads=0, kv_num_heads=0)], shape=(1, 4, 8))
    proto.opset_import[0].version = 23
    return proto


def heavy_functions() -> ModelProto:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.zeros(250_000, np.float32)))
    shape = helper.make_node("Shape", ["c"], ["b"])
    held = helper.make_function("f", "f2", ["a"], ["b"], [constant, shape], [helper.make_opsetid("", 17)])
    return with_functions(function("f0", *["f1"] * 100), function("f1", *["f2"] * 100), held)


def defaulting() -> ModelProto:
    nodes = [helper.make_node("Constant", [], [f"c{k}"]) for k in range(10_000)]
    for node in nodes:
        node.attribute.add(name="value", ref_attr_name="held", type=onnx.AttributeProto.TENSOR)
    nodes.append(helper.make_node("Shape", ["c0"], ["b"]))
    default = onnx.AttributeProto(name="held", type=onnx.AttributeProto.TENSOR, t=numpy_helper.from_array(np.zeros(250_000, np.float32)))
    return with_functions(helper.make_function("f", "f0", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)], attribute_protos=[default]))


def sharing(folder: Path) -> Path:
    path = beside(outside())(folder)
    (path.parent / "w.bin").write_bytes(bytes(1 << 20))
    proto = onnx.load(path, load_external_data=False)
    tensor = proto.graph.initializer[0]
    tensor.dims[:] = [1 << 18]
    for k in range(20_000):
        tensor.name = f"w{k}"
        proto.graph.initializer.append(tensor)
    path.write_bytes(proto.SerializeToString())
    return path


def convolving_in_a_function(op: str) -> ModelProto:
    node = helper.make_node(op, ["a", "a"], ["b"], group=0)
    made = helper.make_function("f", "f0", ["a"], ["b"], [node], [helper.make_opsetid("", 17)])
    call = helper.make_node("f0", ["x"], ["y"], domain="f")
    return model([call], {"x": [1, 1, 4]}, ["y"], functions=[made])


def nested(depth: int) -> ModelProto:
    body = body_of(relu("x", "z0"))
    for level in range(1, depth):
        node = helper.make_node("If", ["yes"], [f"z{level}"], then_branch=body, else_branch=body_of(relu("x", f"e{level}")))
        body = body_of(node)
    return branching(body)


def endless() -> ModelProto:
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["go"]), helper.make_node("Add", ["v", "v"], ["u"])],
        "b",
        [info("i", [], TensorProto.INT64), info("on", [], TensorProto.BOOL), info("v", [4])],
        [info("go", [], TensorProto.BOOL), info("u", [4])],
    )
    yes = numpy_helper.from_array(np.array(True), "yes")
    return plain([helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)], [yes])


# --- sizes --------------------------------------------------------------------------------------------------------------------


def chain(count: int) -> ModelProto:
    proto = plain([relu("x", "v0")])
    for k in range(1, count):
        node = proto.graph.node.add(op_type="Relu")
        node.input.append(f"v{k - 1}")
        node.output.append("y" if k == count - 1 else f"v{k}")
    return proto


def sized(op: str, *numbers: Sequence[int] | int) -> ModelProto:
    weights = [numpy_helper.from_array(np.array(n, np.int64), f"n{k}") for k, n in enumerate(numbers)]
    reads = [weight.name for weight in weights]
    return plain([helper.make_node(op, reads if op in ("ConstantOfShape", "Range") else ["x", *reads], ["y"])], weights)


def sized_by_input() -> ModelProto:
    proto = plain([helper.make_node("ConstantOfShape", ["x"], ["y"])])
    proto.graph.input[0].CopyFrom(info("x", [1], TensorProto.INT64))
    return proto


def gathering() -> ModelProto:
    return plain([helper.make_node("Gather", ["x", "n"], ["y"])], [numpy_helper.from_array(np.array([10**15], np.int64), "n")])


def long_attribute(entries: int) -> ModelProto:
    node = relu()
    node.attribute.add(name="axes", type=AttributeProto.INTS).ints.extend([0] * entries)
    return plain([node])


def long_constant(entries: int) -> ModelProto:
    node = helper.make_node("Constant", [], ["w"])
    node.attribute.add(name="value_ints", type=AttributeProto.INTS).ints.extend([1] * entries)
    return plain([node, helper.make_node("Shape", ["w"], ["y"])])


def strings(count: int, each: int) -> ModelProto:
    tensor = TensorProto(name="w", dims=[count], data_type=TensorProto.STRING, string_data=[b"a" * each] * count)
    return plain([helper.make_node("Shape", ["w"], ["y"])], [tensor])


def declared(kind: int) -> ModelProto:
    proto = plain([relu()])
    proto.graph.input[0].type.tensor_type.elem_type = kind
    return proto


def declared_rank(rank: int) -> ModelProto:
    return plain([relu()], shape=[1] * rank)


def no_text(folder: Path) -> Path:
    path = saved(lambda: plain([relu("x", "NAME"), relu("NAME", "y")]))(folder)
    path.write_bytes(path.read_bytes().replace(b"NAME", b"N\xffM\xfe"))
    return path


def no_text_outside(folder: Path) -> Path:
    path = beside(outside(location="NAME"))(folder)
    path.write_bytes(path.read_bytes().replace(b"NAME", b"N\xffM\xfe"))
    return path


def cut_short(folder: Path) -> Path:
    path = saved(lambda: plain([add()], [weight([4], DATA[:4].tobytes())]))(folder)
    path.write_bytes(path.read_bytes()[:-40])
    return path


def custom() -> ModelProto:
    return plain([helper.make_node("Magic", ["x"], ["y"], domain="f")])


HOSTILE: dict[str, Hostile] = {
    "weight of 2^60 elements": Hostile(saved(lambda: plain([add()], [weight([1 << 60], b"abcd")])), "weight 'w'"),
    "weight whose elements overflow": Hostile(saved(lambda: plain([add()], [weight([1 << 40, 1 << 40], b"abcd")])), "weight 'w'"),
    "weight of negative size": Hostile(saved(lambda: plain([add()], [weight([-4], b"abcd")])), "weight 'w'"),
    "weight of an unknown type": Hostile(saved(lambda: plain([add()], [weight([4], bytes(16), 77)])), "cannot load"),
    "weight of the wrong type": Hostile(saved(lambda: plain([add()], [weight([4], bytes(32), TensorProto.INT64)])), "Add"),
    "weight of rank 65": Hostile(saved(lambda: plain([add()], [weight([1] * 65, bytes(4))])), "64"),
    "external length too small": Hostile(beside(outside(length=16)), "takes 4096 bytes, but it has 16"),
    "external length too large": Hostile(beside(outside(length=1 << 40)), "takes 4096 bytes"),
    "external offset beyond the end": Hostile(beside(outside(offset=1 << 62)), "cut short"),
    "external offset of 5,000 digits": Hostile(beside(outside(offset="9" * 5000)), "whole numbers"),
    "external offset with an overflow": Hostile(beside(outside(offset=1 << 200, length=4096)), "cut short"),
    "external path up": Hostile(beside(outside(location="../secret")), "not a path inside"),
    "external path from the root": Hostile(beside(outside(location="/etc/passwd")), "not a path inside"),
    "external path with a zero byte": Hostile(beside(outside(location="w\0.bin")), "no name that a file can have"),
    "external path of 100,000 letters": Hostile(beside(outside(location="w" * 100_000)), "name"),
    "external symbolic link": Hostile(beside(outside(), lambda file, at: at.symlink_to(file)), "link"),
    "external hard link": Hostile(beside(outside(), os.link), ""),
    "external data in the model itself": Hostile(its_own_weights, "the model itself"),
    "external data in the model itself by a link": Hostile(its_own_weights_by_link, "the model itself"),
    "sparse weight of 4 TiB": Hostile(saved(lambda: with_sparse(sparse([1 << 40]))), "sparse"),
    "sparse weights of 400 MiB each": Hostile(saved(lambda: with_sparse(*(sparse([100 << 20]) for _ in range(8)))), "sparse"),
    "sparse constant of 4 TiB": Hostile(saved(sparse_constant), "sparse"),
    "sparse index beyond the end": Hostile(saved(lambda: with_sparse(sparse([4], indices=[9]))), "sparse"),
    "sparse dimensions that are negative": Hostile(saved(lambda: with_sparse(sparse([-2, -2]))), "sparse"),
    "recursive function": Hostile(saved(lambda: with_functions(function("f0", "f0"))), "calls itself"),
    "functions that call each other": Hostile(saved(lambda: with_functions(function("f0", "f1"), function("f1", "f0"))), "calls itself"),
    "recursive function in a body": Hostile(saved(recursion_in_a_body), "calls itself"),
    "functions that double 28 times": Hostile(saved(lambda: doubling(28)), "nodes"),
    "functions that grow to 10^600": Hostile(saved(lambda: doubling(300, 100)), "deep"),
    "functions in a chain of 3,000": Hostile(saved(lambda: doubling(3000, 1)), "deep"),
    "Conv with group 0": Hostile(saved(lambda: convolving(group=0)), "group"),
    "Conv with group 0 inside": Hostile(saved(lambda: convolving_inside("Conv")), "group"),
    "ConvTranspose with group 0": Hostile(saved(lambda: convolving("ConvTranspose", group=0)), "group"),
    "ConvTranspose with group 0 inside": Hostile(saved(lambda: convolving_inside("ConvTranspose")), "group"),
    "ConvTranspose with group 0 in a function": Hostile(saved(lambda: convolving_in_a_function("ConvTranspose")), "group"),
    "ConvInteger with group 0": Hostile(saved(lambda: convolving("ConvInteger", group=0)), "group"),
    "Conv with group 2^40": Hostile(saved(lambda: convolving(group=1 << 40)), ""),
    "ConvTranspose with group 2^40": Hostile(
        saved(lambda: convolving("ConvTranspose", group=1 << 40)), "divisible" if CHECKS_SIZES else "takes more than"
    ),
    "ConvTranspose of 500 GB": Hostile(saved(lambda: transposing_much((1, 1, 1 << 37), [3])), ""),
    "ConvTranspose of 2 GB": Hostile(saved(lambda: transposing_much((1, 1, 1 << 29), [3])), ""),
    "ConvTranspose with a large window": Hostile(saved(lambda: transposing_much((1, 1, 10_000_000), [100_000])), ""),
    "MaxPool with a large window": Hostile(saved(pooling_much), ""),
    "Attention with 0 heads": Hostile(saved(attending), "heads"),
    "functions that hold 1 MB and are called 10,000 times": Hostile(saved(heavy_functions), "bytes"),
    "default of 1 MB in 10,000 nodes of a function": Hostile(saved(defaulting), "bytes"),
    "weights that share a file 20,000 times": Hostile(sharing, "times that"),
    "Conv with negative group": Hostile(saved(lambda: convolving(group=-1)), "group"),
    "Conv with stride 0": Hostile(saved(lambda: convolving(strides=[0])), "strides"),
    "MaxPool with stride 0": Hostile(
        saved(lambda: plain([helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[0])], shape=(1, 1, 8))), "strides"
    ),
    "Conv with dilation 0": Hostile(saved(lambda: convolving(dilations=[0])), "dilations"),
    "Conv with huge pads": Hostile(saved(lambda: convolving(pads=[1 << 62, 1 << 62])), "pads"),
    "Conv with huge dilation": Hostile(saved(lambda: convolving(dilations=[1 << 62])), "dilations"),
    "Pad by 2^62": Hostile(saved(lambda: sized("Pad", [1 << 62, 1 << 62])), "overflow" if CHECKS_SIZES else ""),
    "DepthToSpace by 0": Hostile(
        saved(lambda: plain([helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=0)], shape=(1, 4, 2, 2))), "Blocksize"
    ),
    "SpaceToDepth by 0": Hostile(
        saved(lambda: plain([helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=0)], shape=(1, 4, 2, 2))), "Blocksize"
    ),
    "GroupNormalization of 0 groups": Hostile(
        saved(
            lambda: plain(
                [helper.make_node("GroupNormalization", ["x", "w", "w"], ["y"], num_groups=0)], [weight([4], bytes(16))], (1, 4, 2, 2)
            )
        ),
        "num_groups",
    ),
    "endless Loop": Hostile(saved(endless), ""),
    "ConstantOfShape sized by an input": Hostile(saved(sized_by_input), ""),
    "ConstantOfShape of 40 GB": Hostile(saved(lambda: sized("ConstantOfShape", [10**10])), "computed of its constants"),
    "ConstantOfShape of 2^80 elements": Hostile(saved(lambda: sized("ConstantOfShape", [1 << 40, 1 << 40])), "computed of its constants"),
    "Tile by 2^40": Hostile(saved(lambda: sized("Tile", [1 << 40])), "takes more than"),
    "Expand to 2^50": Hostile(saved(lambda: sized("Expand", [1 << 50, 1])), "takes more than"),
    "Range of 2^60": Hostile(saved(lambda: sized("Range", 0, 1 << 60, 1)), "computed of its constants"),
    "Gather at 10^15": Hostile(saved(gathering), ""),
    "rank of 10,000": Hostile(saved(lambda: declared_rank(10_000)), "64"),
    "name of 5 MB": Hostile(saved(lambda: plain([relu("x", "n" * 5_000_000), relu("n" * 5_000_000, "y")])), "name"),
    "operator name of 5 MB": Hostile(saved(lambda: plain([helper.make_node("n" * 5_000_000, ["x"], ["y"])])), "name"),
    "name that is no text": Hostile(no_text, "no text in UTF-8"),
    "file name that is no text": Hostile(no_text_outside, "no text in UTF-8"),
    "chain of 200,001 nodes": Hostile(saved(lambda: chain(200_001)), "nodes"),
    "bodies 22 deep": Hostile(saved(lambda: nested(22)), "deep"),
    "file cut short": Hostile(cut_short, "cut short"),
    "custom domain": Hostile(saved(custom), "Magic"),
    "circle": Hostile(saved(lambda: plain([relu("b", "a"), relu("a", "b"), relu("a", "y")])), "depends on its own output"),
    "names defined twice": Hostile(saved(lambda: plain([relu(), relu()])), "Duplicate"),
    "attribute of 5 million entries": Hostile(saved(lambda: long_attribute(5_000_000)), "Unrecognized attribute"),
    "constant of 5 million entries in an attribute": Hostile(saved(lambda: long_constant(5_000_000)), ""),
    "strings of 10 MB": Hostile(saved(lambda: strings(100, 100_000)), ""),
    "10^7 empty strings": Hostile(saved(lambda: strings(10**7, 0)), "texts"),
    "input of an unknown type": Hostile(saved(lambda: declared(99)), "99"),
}

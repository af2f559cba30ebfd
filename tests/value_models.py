"""Small models whose inputs, outputs and inner values are sequences, optionals, maps, texts, or numbers that numpy lacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, TypeProto, helper, numpy_helper

from bbgrap.engine.sessions import make_session

F, I64, BF16, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BFLOAT16, TensorProto.STRING
RANDOM = np.random.default_rng(7)
MAP = (2, 4, 6, 6)

Case = tuple[onnx.ModelProto, Mapping[str, Any]]


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def tensor(kind: int, shape: list[int] | None = None) -> TypeProto:
    return helper.make_tensor_type_proto(kind, shape)


def sequence(kind: int) -> TypeProto:
    return helper.make_sequence_type_proto(tensor(kind))


def conv(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, "w"], [y], name=f"conv_{y}", pads=[1, 1, 1, 1])


def node(op: str, reads: str, makes: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, reads.split(), makes.split(), **attributes)


def model(nodes: list[onnx.NodeProto], inputs: dict[str, TypeProto], outputs: dict[str, TypeProto], **weights: object) -> onnx.ModelProto:
    sides = [[helper.make_value_info(name, kind) for name, kind in side.items()] for side in (inputs, outputs)]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "values", *sides, stored)
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


IMAGE = tensor(F, list(MAP))
WEIGHT = normal(4, 4, 3, 3)


def sequences_inside_and_outside() -> Case:
    nodes = [
        conv("x", "a"),
        node("Relu", "a", "b"),
        node("SequenceInsert", "s b", "longer"),
        node("ConcatFromSequence", "longer", "c", axis=0),
        conv("c", "y"),
        node("SplitToSequence", "a", "parts", axis=1),
    ]
    proto = model(nodes, {"s": sequence(F), "x": IMAGE}, {"y": tensor(F), "longer": sequence(F), "parts": sequence(F)}, w=WEIGHT)
    return proto, {"s": [normal(1, 4, 6, 6), normal(3, 4, 6, 6)], "x": normal(*MAP)}


def a_sequence_read_twice() -> Case:
    nodes = [
        conv("x", "a"),
        node("SplitToSequence", "a", "parts", axis=0),
        node("SequenceAt", "parts zero", "first"),
        node("SequenceAt", "parts one", "second"),
        conv("first", "p"),
        conv("second", "q"),
        node("SequenceConstruct", "p q", "pair"),
        node("ConcatFromSequence", "pair", "y", axis=1),
    ]
    weights = {"w": WEIGHT, "zero": np.int64(0), "one": np.int64(1)}
    return model(nodes, {"x": IMAGE}, {"y": tensor(F), "pair": sequence(F)}, **weights), {"x": normal(*MAP)}


def an_optional_that_is_there() -> Case:
    nodes = [conv("x", "a"), node("OptionalHasElement", "o", "has"), node("OptionalGetElement", "o", "got"), node("Add", "a got", "y")]
    inputs = {"o": helper.make_optional_type_proto(IMAGE), "x": IMAGE}
    proto = model(nodes, inputs, {"y": tensor(F), "has": tensor(TensorProto.BOOL)}, w=WEIGHT)
    return proto, {"o": normal(*MAP), "x": normal(*MAP)}


def an_optional_that_is_empty() -> Case:
    nodes = [conv("x", "y"), node("OptionalHasElement", "o", "has")]
    inputs = {"o": helper.make_optional_type_proto(sequence(F)), "x": IMAGE}
    return model(nodes, inputs, {"y": tensor(F), "has": tensor(TensorProto.BOOL)}, w=WEIGHT), {"o": None, "x": normal(*MAP)}


def chances_by_label() -> Case:
    nodes = [
        node("Gemm", "x v", "a"),
        node("Softmax", "a", "b"),
        node("ZipMap", "b", "named", domain="ai.onnx.ml", classlabels_strings=["cat", "dog", "emu"]),
    ]
    named = helper.make_sequence_type_proto(helper.make_map_type_proto(STRING, tensor(F)))
    return model(nodes, {"x": tensor(F, [6, 5])}, {"named": named, "b": tensor(F, [6, 3])}, v=normal(5, 3)), {"x": normal(6, 5)}


def counts_by_word() -> Case:
    nodes = [
        node("DictVectorizer", "d", "a", domain="ai.onnx.ml", string_vocabulary=["the", "cat", "sat"]),
        node("MatMul", "a v", "b"),
        node("Add", "b x", "y"),
    ]
    inputs = {"d": helper.make_map_type_proto(STRING, tensor(F)), "x": tensor(F, [8, 6])}
    return model(nodes, inputs, {"y": tensor(F)}, v=normal(3, 6)), {"d": {"cat": 2.0, "sat": 0.5}, "x": normal(8, 6)}


def numbers_that_numpy_lacks() -> Case:
    nodes = [
        conv("x", "a"),
        node("Cast", "a", "h", to=BF16),
        node("Cast", "h", "c", to=F),
        node("Cast", "b", "d", to=F),
        node("Add", "c d", "e"),
        conv("e", "y"),
    ]
    inputs = {"x": IMAGE, "b": tensor(BF16, list(MAP))}
    return model(nodes, inputs, {"y": tensor(F)}, w=WEIGHT), {"x": normal(*MAP), "b": normal(*MAP).astype(ml_dtypes.bfloat16)}


def float8_outputs() -> Case:
    nodes = [conv("x", "a"), node("Cast", "a", "y", to=TensorProto.FLOAT8E4M3FN), node("Relu", "a", "z")]
    proto = model(nodes, {"x": IMAGE}, {"y": tensor(TensorProto.FLOAT8E4M3FN), "z": tensor(F)}, w=WEIGHT)
    return proto, {"x": normal(*MAP)}


def texts_in_a_sequence() -> Case:
    nodes = [
        node("SequenceAt", "s one", "t"),
        node("SequenceInsert", "s t", "u"),
        node("ConcatFromSequence", "u", "all", axis=0),
        conv("x", "y"),
    ]
    outputs = {"u": sequence(STRING), "all": tensor(STRING), "y": tensor(F)}
    proto = model(nodes, {"s": sequence(STRING), "x": IMAGE}, outputs, w=WEIGHT, one=np.int64(1))
    return proto, {"s": [np.array(["a", "bc"], object), np.array(["äöü", ""], object)], "x": normal(*MAP)}


CASES = [
    sequences_inside_and_outside,
    a_sequence_read_twice,
    an_optional_that_is_there,
    an_optional_that_is_empty,
    chances_by_label,
    counts_by_word,
    numbers_that_numpy_lacks,
    float8_outputs,
    texts_in_a_sequence,
]


def plain_answers(path: Path, feed: dict[str, Any]) -> list[Any]:
    """Return what plain onnxruntime says; numbers of bfloat16 are given to it by their bits."""
    session = make_session(path, threads=1)
    bits = {name: array.view(np.uint16) for name, array in feed.items() if isinstance(array, np.ndarray) and array.dtype.kind == "V"}
    made = {name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, onnx.TensorProto.BFLOAT16) for name, array in bits.items()}
    return session.run(None, feed | made)


def same(got: Any, want: Any) -> bool:  # noqa: ANN401 - whatever onnxruntime gives
    """Whether two values are the same, of the same types; numbers within 1e-5 of the largest magnitude."""
    if isinstance(want, list):
        return isinstance(got, list) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, dict):
        return isinstance(got, dict) and got.keys() == want.keys() and all(abs(got[key] - want[key]) <= 1e-5 for key in want)
    if want is None:
        return got is None
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if want.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    return bool(np.allclose(got, want, rtol=0, atol=1e-5 * max(1.0, float(np.abs(want).max(initial=0.0)))))

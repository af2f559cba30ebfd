"""Quantized and float16 files as other people's tools write them: onnxruntime's quantizers and its float16 converter, on small networks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16

from bbgrap.engine.load import load_graph
from bbgrap.graph import Array
from bbgrap.graph.onnx_io import save_graph
from bbgrap.zoo import build
from bbgrap.zoo.vit import vit

Convert = Callable[[Path, Path, Array], None]

U8, S8 = QuantType.QUInt8, QuantType.QInt8


class Samples(CalibrationDataReader):
    """Some seeded inputs of one shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        random = np.random.default_rng(0)
        self._left: Iterator[Mapping[str, Array]] = iter([{"input": random.standard_normal(shape, np.float32)} for _ in range(3)])

    def get_next(self) -> Mapping[str, Array] | None:
        """Return the next one, or None."""
        return next(self._left, None)


def _static(source: Path, target: Path, x: Array, *, form: QuantFormat, channels: bool, maps: QuantType, weights: QuantType) -> None:
    quantize_static(
        str(source), str(target), Samples(x.shape), quant_format=form, per_channel=channels, activation_type=maps, weight_type=weights
    )


def _dynamic(source: Path, target: Path, x: Array, *, channels: bool, weights: QuantType) -> None:
    quantize_dynamic(str(source), str(target), per_channel=channels, weight_type=weights)


def _half(source: Path, target: Path, x: Array, *, outside: bool, kept: tuple[str, ...] = ()) -> None:
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

    blocked = [*DEFAULT_OP_BLOCK_LIST, *kept]
    made = convert_float_to_float16(onnx.load(source), keep_io_types=outside, op_block_list=blocked)
    for number, node in enumerate(made.graph.node):
        node.name = f"{node.name}.{number}"  # the converter may give two casts one name, which onnxruntime refuses
    onnx.save(made, target)


QDQ, OPERATORS = QuantFormat.QDQ, QuantFormat.QOperator
INTEGER: Mapping[str, Convert] = {
    "qdq-u8s8-channels": partial(_static, form=QDQ, channels=True, maps=U8, weights=S8),
    "qdq-u8u8-tensors": partial(_static, form=QDQ, channels=False, maps=U8, weights=U8),
    "qdq-s8s8-channels": partial(_static, form=QDQ, channels=True, maps=S8, weights=S8),
    "operators-u8s8-tensors": partial(_static, form=OPERATORS, channels=False, maps=U8, weights=S8),
    "operators-u8s8-channels": partial(_static, form=OPERATORS, channels=True, maps=U8, weights=S8),
}
DYNAMIC: Mapping[str, Convert] = {
    "dynamic-u8": partial(_dynamic, channels=False, weights=U8),
    "dynamic-s8-channels": partial(_dynamic, channels=True, weights=S8),
}
HALF: Mapping[str, Convert] = {
    "float16": partial(_half, outside=False),
    "float16-inside": partial(_half, outside=True),
    "mixed": partial(_half, outside=True, kept=("Gemm", "Softmax")),
}
FORMATS: Mapping[str, Convert] = {**INTEGER, **DYNAMIC, **HALF}
"""How a file of floats becomes another one, by name; the third argument is an input."""


def networks(folder: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Write the networks that are converted, batch normalisations folded as quantizers ask for; return file and input shape by name."""
    made = {}
    transformer = vit("attention", depth=1, width=32, heads=4, size=16, patch=4, classes=10)
    for graph in (build("tiny"), transformer):
        draft, path, shape = folder / "draft.onnx", folder / f"{graph.name}.onnx", graph.types["input"].known_shape
        save_graph(graph, draft)
        save_graph(replace(load_graph(draft, {"input": shape}), name=graph.name), path)
        made[graph.name] = path, shape
    return made


def converted(name: str, source: Path, shape: tuple[int, ...]) -> tuple[Path, Array]:
    """Convert a network by a format; return the file and an input for it."""
    target = source.with_name(f"{source.stem}-{name}.onnx")
    x = np.random.default_rng(5).standard_normal(shape, np.float32)
    logging.disable(logging.WARNING)  # the quantizers advise their users
    try:
        FORMATS[name](source, target, x)
    finally:
        logging.disable(logging.NOTSET)
    return target, x.astype(np.float16) if name == "float16" else x


def of_four_bits(folder: Path, *, accuracy: int, pairs: bool) -> tuple[Path, Array]:
    """Write two products with weights of 4 bits in blocks of 16, as MatMulNBits or behind DequantizeLinear; return file and input."""
    random, size, blocks, columns = np.random.default_rng(2), 16, 4, 24
    depth = size * blocks
    nodes, weights, value = [], [], "input"
    for number, width in enumerate((columns * 2, depth)):
        inner = depth if number == 0 else columns * 2
        packed = random.integers(0, 256, (width, inner // size, size // 2)).astype(np.uint8)
        scales = random.uniform(0.02, 0.1, (width, inner // size)).astype(np.float32)
        made = f"y{number}"
        if pairs:
            levels = np.stack([packed & 15, packed >> 4], axis=-1).reshape(width, inner).T.astype(np.int16) - 8
            weights.append(helper.make_tensor(f"w{number}", TensorProto.INT4, levels.shape, levels.ravel().tolist()))
            weights.append(numpy_helper.from_array(np.ascontiguousarray(scales.T), f"s{number}"))
            nodes.append(helper.make_node("DequantizeLinear", [f"w{number}", f"s{number}"], [f"f{number}"], axis=0, block_size=size))
            nodes.append(helper.make_node("MatMul", [value, f"f{number}"], [made]))
        else:
            weights += [numpy_helper.from_array(packed, f"w{number}"), numpy_helper.from_array(scales.ravel(), f"s{number}")]
            parameters = {"N": width, "K": inner, "bits": 4, "block_size": size, "accuracy_level": accuracy}
            nodes.append(helper.make_node("MatMulNBits", [value, f"w{number}", f"s{number}"], [made], domain="com.microsoft", **parameters))
        value = made
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 6, depth]) for name in ("input", value)]
    graph = helper.make_graph(nodes, "four_bits", ends[:1], ends[1:], weights)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = folder / f"four_bits-{accuracy}-{pairs}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    return path, random.standard_normal((2, 6, depth), np.float32)

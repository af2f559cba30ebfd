"""Quantized models in the form in which onnxruntime computes them: operators of integers in place of pairs of Q and DQ.

    DequantizeLinear -- Conv -- QuantizeLinear      a file for CPUs (QDQ): everything between the operators is float32
    QLinearConv                                     what onnxruntime makes of it: everything between the operators is a byte

The whole model is fused once, before it is cut: maps and halos then travel as bytes, and a segment runs the kernels that the whole would.
A segment is therefore loaded without these fusions (`make_session(segment=True)`): it would fuse pairs that the whole keeps, where the
other readers of a value are on another machine.
"""

from __future__ import annotations

from bbgrap.graph.onnx_io import OnnxModel

_OPERATORS = frozenset(
    {
        "ConvInteger",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
    }
)

FLOAT_FUSIONS = ("NchwcTransformer", "ConvActivationFusion", "ConvAddActivationFusion", "GemmActivationFusion", "MatMulActivationFusion")
"""What onnxruntime does to operators of floats that one CPU only can run, or that agents do to their segments anyway."""


def is_quantized(model: OnnxModel) -> bool:
    """Tell whether a model computes with quantized values."""
    return any(op in _OPERATORS for _, op in model.operators)

"""Operators that have no description, each with the reason: a node of theirs runs whole on one machine.

`tests/bbgrap/tdl/test_coverage.py` requires every operator of the standard, up to the newest opset that onnxruntime runs, to be
described or listed here; `docs/reference/operators.md` prints the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SHAPE_OF_A_RUN = "the shape of its output is only known when the model runs"
SPLIT_ON_ENTRY = "replaced on entry by one Slice per output, which splits"
_RANDOM = "draws random numbers: pieces would draw others than the whole does"
_CONTROL = "control flow: its body runs whole, on one machine"
_SEQUENCE = "a sequence or an optional is no tensor, so it has no regions"
_SHAPE = "a few numbers that follow from shapes; a model with concrete shapes has them as constants"
_CONSTANT = "depends on parameters alone: folded into a constant on entry, or so small that one machine makes it"
_SEVERAL = "has several outputs that belong together, and neither may be absent"
_MAP = "a map is no tensor, so it has no regions"
_CACHE = "writes into its cache at a place that only the run tells"
_NO_KERNEL = "onnxruntime has no kernel of it, and writes it out in other operators, if it knows any"
_TEXT = "text: strings have no fixed size, and its work is small"

_STANDARD: dict[str, str] = {
    **dict.fromkeys(("Compress", "NonMaxSuppression", "NonZero", "Unique"), SHAPE_OF_A_RUN),
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        _RANDOM,
    ),
    **dict.fromkeys(("If", "Loop", "Scan", "SequenceMap"), _CONTROL),
    **dict.fromkeys(
        (
            "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct",
            "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SplitToSequence",
        ),
        _SEQUENCE,
    ),
    "Size": _SHAPE,
    **dict.fromkeys(
        ("BlackmanWindow", "Constant", "HammingWindow", "HannWindow", "MelWeightMatrix"),
        _CONSTANT,
    ),
    **dict.fromkeys(
        (
            "CastLike", "CausalConvWithState", "CenterCropPad", "GroupNormalization", "HardSwish", "LinearAttention", "Mish",
            "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "SwiGLU", "Swish",
        ),
        _NO_KERNEL,
    ),
    **dict.fromkeys(("StringNormalizer", "StringSplit", "TfIdfVectorizer"), _TEXT),
    "Dropout": "removed on entry outside training; in training it draws random numbers",
    "ImageDecoder": "decodes a stream of bytes, of which every pixel needs all; onnxruntime has no kernel of it",
    "MaxUnpool": "its indices count through the whole tensor, over all images and channels, and may point anywhere",
    "Split": SPLIT_ON_ENTRY,
}  # fmt: skip
_MICROSOFT: dict[str, str] = {
    "DecoderMaskedMultiHeadAttention": _CACHE,
    "QEmbedLayerNormalization": _SEVERAL,
    "QAttention": "reads its packed weights whole; where it can be, it is replaced by what can be divided",
    "QLinearReduceMean": "onnxruntime has no kernel of it for processors",
    "SparseAttention": _CACHE,
}
_ESTIMATORS = dict.fromkeys(("CastMap", "DictVectorizer", "ZipMap"), _MAP)

UNDESCRIBED: Mapping[tuple[str, str], str] = MappingProxyType(
    {("", op): reason for op, reason in _STANDARD.items()}
    | {("ai.onnx.ml", op): reason for op, reason in _ESTIMATORS.items()}
    | {("com.microsoft", op): reason for op, reason in _MICROSOFT.items()}
)
"""Domain ('' is ai.onnx) and operator to reason."""

UNKNOWN = "unknown to this version"


def why_whole(domain: str, op: str) -> str:
    """Return why an operator without a description runs whole."""
    return UNDESCRIBED.get((domain, op), UNKNOWN)

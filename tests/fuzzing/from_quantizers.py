"""What onnxruntime's own quantizers make of networks: static (QDQ nodes, or quantized operators), dynamic, and weights of few bits."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bbgrap.graph import Array
from tests.fuzzing.bases import base_sample
from tests.fuzzing.samples import Sample
from tests.fuzzing.sources import NotMadeError

Quantizer = Callable[[Sample, np.random.Generator, Path], bytes]
CALIBRATIONS = 3


def sample(seed: int) -> Sample:
    """Return a quantized model.

    Raises:
        NotMadeError: if the quantizer fails on the model or changes nothing.
    """
    random = np.random.default_rng((seed, 3))
    base = base_sample(seed)
    words, quantize = QUANTIZERS[seed % len(QUANTIZERS)]
    logging.disable(logging.CRITICAL)  # the quantizers warn about every node that they leave
    with tempfile.TemporaryDirectory(prefix="fuzzing-") as folder:
        try:
            model = quantize(base, random, Path(folder))
        except Exception as error:
            raise NotMadeError(f"{words}: {type(error).__name__}: {' '.join(str(error).split())[:60]}") from None
        finally:
            logging.disable(logging.NOTSET)
    return Sample(f"{words}{seed}", model, base.feeds)


class _Readings:
    """The model's inputs, and some like them, for calibration."""

    def __init__(self, feeds: dict[str, Array], random: np.random.Generator) -> None:
        self.left = [feeds]
        for _ in range(CALIBRATIONS):
            other = {n: a if a.dtype.kind != "f" else random.standard_normal(a.shape).astype(a.dtype) for n, a in feeds.items()}
            self.left.append(other)

    def get_next(self) -> dict[str, Array] | None:
        """Return the next inputs."""
        return self.left.pop() if self.left else None


def _prepared(base: Sample, folder: Path, random: np.random.Generator) -> Path:
    """Write the model, sometimes after the quantizers' own preparation, as their documentation asks."""
    from onnxruntime.quantization import quant_pre_process

    path = folder / "base.onnx"
    path.write_bytes(base.model)
    if random.random() < 0.5:
        return path
    prepared = folder / "prepared.onnx"
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    return prepared


def _static(kind: str, base: Sample, random: np.random.Generator, folder: Path) -> bytes:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    signs = [(QuantType.QUInt8, QuantType.QInt8), (QuantType.QUInt8, QuantType.QUInt8), (QuantType.QInt8, QuantType.QInt8)]
    if kind == "QDQ":
        signs.append((QuantType.QUInt16, QuantType.QInt8))
    activations, weights = signs[int(random.integers(len(signs)))]
    extra: dict[str, Any] = {"ActivationSymmetric": bool(random.random() < 0.3), "WeightSymmetric": bool(random.random() < 0.7)}
    if kind == "QDQ":
        extra |= {"DedicatedQDQPair": bool(random.random() < 0.3), "AddQDQPairToWeight": bool(random.random() < 0.2)}
    quantize_static(
        str(_prepared(base, folder, random)),
        str(folder / "made.onnx"),
        _Readings(base.feeds, random),
        quant_format=QuantFormat[kind],
        per_channel=bool(random.random() < 0.5),
        reduce_range=bool(random.random() < 0.2),
        activation_type=activations,
        weight_type=weights,
        extra_options=extra,
    )
    return (folder / "made.onnx").read_bytes()


def _dynamic(base: Sample, random: np.random.Generator, folder: Path) -> bytes:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kind = QuantType.QInt8 if random.random() < 0.5 else QuantType.QUInt8
    source, made = _prepared(base, folder, random), folder / "made.onnx"
    quantize_dynamic(str(source), str(made), per_channel=bool(random.random() < 0.5), weight_type=kind)
    return made.read_bytes()


def _few_bits(base: Sample, random: np.random.Generator, folder: Path) -> bytes:
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
    from onnxruntime.quantization.quant_utils import QuantFormat

    form = QuantFormat.QOperator if random.random() < 0.7 else QuantFormat.QDQ
    size, symmetric = int(random.choice([16, 32, 64])), bool(random.random() < 0.5)
    config = DefaultWeightOnlyQuantConfig(block_size=size, is_symmetric=symmetric, quant_format=form)
    quantizer = MatMulNBitsQuantizer(onnx.load_from_string(base.model), algo_config=config)
    quantizer.process()
    made: bytes = quantizer.model.model.SerializeToString()
    return made


def _qdq(base: Sample, random: np.random.Generator, folder: Path) -> bytes:
    return _static("QDQ", base, random, folder)


def _qoperator(base: Sample, random: np.random.Generator, folder: Path) -> bytes:
    return _static("QOperator", base, random, folder)


QUANTIZERS: tuple[tuple[str, Quantizer], ...] = (
    ("qdq", _qdq),
    ("qoperator", _qoperator),
    ("dynamic", _dynamic),
    ("qdq", _qdq),
    ("few_bits", _few_bits),
)

"""Readers of files: models, clusters and profiles."""

from __future__ import annotations

import atexit
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bbgrap.cluster.files import profile_text, read_cluster, read_profiles
from bbgrap.cluster.types import LinkProfile, NodeProfile, Speed
from bbgrap.cluster.units import RATES, parse_quantity
from bbgrap.engine.load import load_graph
from bbgrap.errors import BbgrapError, ClusterFileError
from bbgrap.graph.onnx_opset import normalize_opset
from bbgrap.graph.onnx_read import read_model
from tests import hostile_models as models
from tests.fuzzing.readers.any_call import calls_any_operator
from tests.fuzzing.readers.mutate import in_protobuf
from tests.fuzzing.readers.reader import Reader

FOLDER = Path(tempfile.mkdtemp(prefix="bbgrap-readers-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def _of_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    path = FOLDER / name

    def of(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return of


MODELS = [
    proto.SerializeToString()
    for proto in (
        models.plain([models.add()], [models.weight([4], models.DATA[:4].tobytes())]),
        models.convolving(group=1, pads=[1, 1], strides=[2]),
        models.convolving("ConvTranspose", group=1, output_padding=[0]),
        models.nested(3),
        models.doubling(3),
        models.with_sparse(models.sparse([4])),
        models.endless(),
        models.long_constant(3),
        models.strings(3, 3),
        models.sized("Tile", [3]),
        models.plain([models.add()], [models.outside(length=4096)], [1024]),
    )
]

_PROFILE = NodeProfile("a", 0.5, 2, 1, 10 << 30, (LinkProfile("b", 1e8, 1e-4),), "", (Speed("conv", 1e9),))
_PROFILES = [profile_text(_PROFILE).encode()]
_CLUSTERS = [path.read_bytes() for path in sorted(Path("deploy/clusters").glob("*.yaml")) if ".profile." not in path.name]


def _quantity(data: bytes) -> None:
    try:
        value = parse_quantity(data.decode("latin1"), RATES)
    except ValueError:
        return
    assert math.isfinite(value)


(FOLDER / "w.bin").write_bytes(bytes(4096))

FILES = [
    Reader("read_model", _of_file(read_model, "m.onnx"), MODELS, (BbgrapError,), mutate=in_protobuf),
    Reader("load_graph", _of_file(lambda path: load_graph(path, {}), "g.onnx"), MODELS, (BbgrapError,), mutate=in_protobuf, beside=4 << 20),
    Reader(
        "any call",
        _of_file(lambda path: normalize_opset(read_model(path)), "a.onnx"),
        MODELS[:1],
        (BbgrapError,),
        beside=4 << 20,
        mutate=calls_any_operator,
    ),
    Reader("cluster file", _of_file(read_cluster, "c.yaml"), _CLUSTERS, (ClusterFileError,), times=256, beside=8 << 20),
    Reader("profile file", _of_file(read_profiles, "p.yaml"), _PROFILES, (ClusterFileError,), times=256, beside=8 << 20),
    Reader("quantity", _quantity, [b"8GiB", b" 1.5e3 Gbit/s", b"0.3", b"-1e308TB/s"], ()),
]

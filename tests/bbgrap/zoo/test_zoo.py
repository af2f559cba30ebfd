import numpy as np
import pytest

from bbgrap import zoo
from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.reference import Reference
from bbgrap.errors import ModelError
from bbgrap.graph import DType, check_graph
from bbgrap.graph.onnx_io import free_batch, read_model, save_graph, to_graph, with_input_shapes
from bbgrap.planners.options import PlanOptions
from bbgrap.program.steps import Send
from bbgrap.zoo.quantized import measured_ranges
from bbgrap.zoo.vit import vit
from tests.partition import all_values, assert_close, compiled, plain_outputs, run_checked
from tools.measure_ranges import ranges_of

PARAMETERS = {  # as torchvision counts them: without running statistics
    "alexnet": 61_100_840,
    "mobilenet_v2": 3_504_872,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "vgg16": 138_357_544,
    "vit_b16": 86_567_656,
}
WITH_STATE = {"gpt2", "gpt2-gqa", "tiny-decoder", "tiny-llama", "tiny-llama-int4", "voice"}
"""They have tests of their own."""

LARGE = ("alexnet", "resnet152", "vgg16", "vit_b16")
OUTPUTS = {"forest": ("N", 4), "tiny": ("N", 10), "tiny_int8": ("N", 10), "unet": ("N", 2, 256, 256), "yolo": ("N", 25_200, 85)}


def by_size(names, broad=()):
    return [pytest.param(name, marks=(pytest.mark.slow,) * (name in LARGE) + (pytest.mark.broad,) * (name in broad)) for name in names]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("zoo")


def test_names():
    in_floats = {"alexnet", "mobilenet_v2", "resnet152", "resnet50", "tiny", "unet", "vgg16", "vit_b16", "yolo"}
    in_bytes = {"mobilenet_v2_int8", "resnet50_int8", "tiny_int8"}
    assert zoo.names() == tuple(sorted(in_floats | in_bytes | WITH_STATE | {"forest"}))


@pytest.mark.parametrize("name", by_size(PARAMETERS))
def test_parameter_counts(name):
    weights = zoo.build(name).weights.values()
    trained = [w for w in weights if w.type.dtype is DType.FLOAT and w.array.ndim and "running" not in w.name]
    assert sum(w.array.size for w in trained) == PARAMETERS[name]


@pytest.mark.parametrize(
    "name", by_size(sorted({*zoo.names()} - WITH_STATE), {"mobilenet_v2_int8", "resnet50", "resnet50_int8", "unet", "yolo"})
)
def test_files_have_a_free_batch_and_outputs_that_depend_on_the_input(name, cache):
    model = Reference(zoo.materialize(name, cache), threads=None)
    (item,) = model.inputs
    (output,) = model.outputs
    assert (item.name, item.shape[0]) == ("input", "N")
    assert (output.name, output.shape) == ("output", OUTPUTS.get(name, ("N", 1000)))
    rng = np.random.default_rng(0)
    a, b = (model.run({"input": rng.standard_normal((1, *item.shape[1:]), np.float32)})[0] for _ in range(2))
    assert np.isfinite(a).all()
    assert a.std() > 1e-2
    assert (a - b).std() > 1e-2
    assert len(np.unique(a)) > (5 if name.endswith("_int8") else 0.5 * min(a.size, 10_000))  # bytes have at most 256 values


def small_vit():
    return vit("small", depth=2, width=32, heads=4, size=32, patch=8, classes=10)


def test_a_transformer_keeps_its_shapes_and_its_answers_whatever_the_batch(tmp_path):
    path = tmp_path / "small.onnx"
    save_graph(small_vit(), path, free=free_batch(small_vit()))
    read = to_graph(with_input_shapes(read_model(path), {"input": (1, 3, 32, 32)}))
    assert read.types == small_vit().types
    model = Reference(path, threads=1)
    batch = np.random.default_rng(0).standard_normal((3, 3, 32, 32), np.float32)
    (whole,) = model.run({"input": batch})
    single = np.concatenate([model.run({"input": batch[k : k + 1]})[0] for k in range(3)])
    assert np.allclose(whole, single, rtol=0, atol=1e-5 * np.abs(whole).max())


@pytest.mark.parametrize(("split", "batch", "whole"), [("rows", 1, 2), ("channels", 1, None), ("inputs", 1, None), ("batch", 4, 0)])
@pytest.mark.parametrize("nodes", [2, pytest.param(3, marks=pytest.mark.broad)])
def test_a_transformer_answers_the_same_in_parts(split, batch, whole, nodes, tmp_path):
    path = tmp_path / "small.onnx"
    save_graph(small_vit(), path, free=free_batch(small_vit()))
    x = np.random.default_rng(0).standard_normal((batch, 3, 32, 32), np.float32)
    graph = load_graph(path, {"input": x.shape})
    parts = compiled(graph, Cluster.even(nodes), PlanOptions(split=split))
    if whole is not None:  # by rows: the class token that is taken out, and what follows
        assert sum(len(tiles) == 1 for tiles in parts.plan.tiles.values()) == whole
    (got,) = run_checked(parts.optimized, [x], all_values(graph, [x]))
    assert_close(got, plain_outputs(graph, [x])[0], split)


@pytest.mark.parametrize("name", ["tiny", "mobilenet_v2", "unet"])
def test_the_builder_tracks_the_shapes_that_onnx_infers(name, cache):
    built = zoo.build(name)
    assert check_graph(built) == ()
    read = to_graph(with_input_shapes(read_model(zoo.materialize(name, cache)), {"input": built.types["input"].shape}))
    assert read.types == built.types


def test_the_same_name_gives_the_same_bytes(tmp_path):
    one, two = (zoo.materialize("tiny", tmp_path / where) for where in ("a", "b"))
    assert one.read_bytes() == two.read_bytes()
    assert [path.name for path in one.parent.iterdir()] == [one.name]


def test_a_file_is_built_once_and_found_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = zoo.materialize("tiny")
    assert path.parent == tmp_path / "bbgrap" / "zoo"
    before = path.stat().st_mtime_ns
    assert zoo.materialize("tiny") == path
    assert path.stat().st_mtime_ns == before


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ModelError, match="no model 'lenet'; there are alexnet, "):
        zoo.materialize("lenet", tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"cannot be written: .*; choose another folder by XDG_CACHE_HOME"):
        zoo.materialize("tiny", tmp_path / "file")


@pytest.mark.parametrize("name", ["tiny", "mobilenet_v2"])
def test_a_network_in_8_bits_says_what_the_exact_one_says(name, cache):
    exact, rounded = (Reference(zoo.materialize(network, cache)) for network in (name, f"{name}_int8"))
    x = np.random.default_rng(9).standard_normal((1, *exact.inputs[0].shape[1:]), np.float32)
    (want,), (got,) = exact.run({"input": x}), rounded.run({"input": x})
    assert np.corrcoef(want.ravel(), got.ravel())[0, 1] > 0.99


def test_the_ranges_of_networks_in_8_bits_are_those_of_seeded_inputs():
    measured, kept = ranges_of(zoo.build("tiny")), measured_ranges("tiny")
    assert measured.keys() == kept.keys()
    for name, (low, high) in measured.items():
        assert (low, high) == pytest.approx(tuple(kept[name]), rel=2e-3), name


@pytest.mark.parametrize("split", ["rows", "channels", "columns"])
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_network_in_8_bits_answers_the_same_to_the_bit_in_parts(split, nodes, cache):
    path = zoo.materialize("tiny_int8", cache)
    x = np.random.default_rng(3).standard_normal((2, 3, 32, 32), np.float32)
    graph = load_graph(path, {"input": x.shape})
    assert not any(node.op in ("Conv", "Add", "Gemm") for node in graph.nodes), "the integer form has no operator of floats"
    parts = compiled(graph, Cluster.even(nodes), PlanOptions(split=split))
    artifacts = export(parts.optimized)
    (got,) = simulate(artifacts, [x], local_kernels(artifacts))
    (want,) = Reference(path).run({"input": x})
    assert np.array_equal(got, want)


@pytest.mark.parametrize("nodes", [2, 3])
def test_halos_of_a_network_in_8_bits_have_a_quarter_of_the_bytes(nodes, cache):
    in_floats, in_bytes = (halo_bytes(zoo.materialize(name, cache), nodes) for name in ("tiny", "tiny_int8"))
    assert in_floats == 4 * in_bytes > 0


def halo_bytes(path, nodes):
    """Return the bytes that agents send each other of maps that windows are read from; the input comes from the host in one of them."""
    program = compiled(load_graph(path, {"input": (1, 3, 32, 32)}), Cluster.even(nodes), PlanOptions(split="rows")).optimized
    graph = program.graph
    windowed = {node.inputs[0] for node in graph.nodes if max(node.attributes.get("kernel_shape", (1,))) > 1}
    read = {value for value in windowed if value in graph.producers and graph.producers[value].op != "Transpose"}
    total = 0
    for device in program.devices[: program.host]:
        for step in device.steps:
            if isinstance(step, Send) and step.destination != program.host:
                values = [(device.buffers[part.buffer].value, part.region) for part in step.parts]
                total += sum(region.size * graph.types[value].dtype.itemsize for value, region in values if value in read)
    return total

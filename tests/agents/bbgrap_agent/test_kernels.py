"""What the probe's networks are, and that their kernels are found in what onnxruntime writes."""

import json
import subprocess
import sys

import numpy as np
import pytest
from bbgrap_agent.kernels import kernel_times, measure_network, networks, works

from bbgrap.engine.sessions import make_session
from bbgrap.errors import ExecutionError
from bbgrap.graph.onnx_write import write_graph
from bbgrap.work import KINDS

UNSEEN = {"other", "segment", "message"}
"""Kinds that no kernel is of."""


@pytest.fixture(scope="module")
def graphs():
    return {graph.name: graph for graph in (make() for make in networks())}


def test_every_kind_is_measured_in_several_sizes(graphs):
    found = {kind: set() for kind in KINDS if kind not in UNSEEN}
    for graph in graphs.values():
        for name, work in works(graph).items():
            found[work.kind].add((graph.name, name, work))
    assert all(len({work for _, _, work in of}) >= 7 for of in found.values())


@pytest.mark.broad
def test_half_of_the_rows_reads_all_weights(graphs):
    whole, half = (works(graphs[name])["conv3.relu"] for name in ("maps256x14x14", "maps256x7x14"))
    assert half.flops * 2 == whole.flops
    assert half.map_bytes * 2 == whole.map_bytes
    assert half.weight_bytes == whole.weight_bytes == 4 * 9 * 256 * 256


def test_networks_run_on_numbers_that_stay_numbers(graphs):
    """Infinite or vanishing values would take another time."""
    graph = graphs["maps64x56x56"]
    session = make_session(write_graph(graph, weights="inline").data, threads=1)
    results = session.run(None, {"input": np.random.default_rng(0).random(graph.types["input"].shape, dtype=np.float32)})
    assert all(np.isfinite(result).all() and np.abs(result).max() > 1e-6 for result in results)


def test_kernels_are_found_in_a_profile():
    events = [
        {"cat": "Session", "name": "model_run", "dur": 99},
        {"cat": "Node", "name": "conv3.relu_nchwc_kernel_time", "dur": 10},
        {"cat": "Node", "name": "conv3.relu_nchwc_kernel_time", "dur": 12},
        {"cat": "Node", "name": "sum_kernel_time", "dur": 3},
        {"cat": "Node", "name": "ReorderOutput_token_14_kernel_time", "dur": 7},
        {"cat": "Node", "name": "sum_fence_before", "dur": 1},
    ]
    assert kernel_times(json.dumps(events)) == {"conv3.relu": [10.5e-6, 12.5e-6], "sum": [3.5e-6], "ReorderOutput": [7.5e-6]}


@pytest.mark.parametrize("written", ["", '[{"name": "conv_kernel_time"'])
def test_what_a_full_disk_cut_off_is_said(written):
    with pytest.raises(ExecutionError, match="is the disk full"):
        kernel_times(written)


def test_every_counted_kernel_is_timed(graphs):
    """onnxruntime's names for kernels are not documented: here the installed version is asked."""
    for name in ("maps512x4x7", "image112x224", "tokens16x256", "vectors1x256x256", "bytes256x7x14", "matrices64x768x768"):
        samples, _ = measure_network(lambda name=name: graphs[name], 1, 0.0, lambda: None, 4)
        timed = {sample.name.partition(".")[2] for sample in samples}
        assert timed == {event.removesuffix(".relu") for event in works(graphs[name])} - {"entry"}
        assert all(sample.seconds > 0 for sample in samples)


MEMORY = """
from bbgrap.engine.sessions import share_arena
from bbgrap_agent.kernels import kernel_samples


def mib(of):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith(of))


share_arena()
before = mib("VmRSS")
kernel_samples(1, 0.0, lambda: None)
print(mib("VmHWM") - before)
"""


@pytest.mark.broad
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_with_little_memory_can_be_measured():
    """All networks at once took 790 MiB: a worker that may take 512 was ended."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200

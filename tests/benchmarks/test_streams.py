"""What is kept of measured streams; the measurement itself is `bench --stream`, which has its own tests."""

import json

from benchmarks.kept import keep
from benchmarks.streams import KEY, row_of

REPORT = {
    "model": "resnet50",
    "in_flight": 4,
    "requests": 400,
    "single_node": {"onnxruntime": "1.31.1"},
    "machine": {"others_percent": [1.0, 2.0]},
    "results": [
        {
            "single_per_s": 13.0,
            "throughput_per_s": 24.5,
            "throughput_ratio": 1.88,
            "per_s": [24.0, 25.0],
            "verified": True,
            "planner": "auto",
        }
    ],
}


def test_a_stream_measured_again_replaces_its_row_and_no_other(tmp_path):
    path = tmp_path / "streams.json"
    keep(
        [row_of(REPORT, "loopback", 1.0, "first"), row_of(REPORT, "1gbit", 1.0, "first"), row_of(REPORT, "loopback", 0.5, "first")],
        path,
        KEY,
    )
    keep([row_of(REPORT, "loopback", 1.0, "second")], path, KEY)
    rows = {(row["link"], row["part_of_second_core"]): row for row in json.loads(path.read_text())}
    assert len(rows) == 3
    assert {key: row["facts"]["date"] for key, row in rows.items()} == {
        ("1gbit", 1.0): "first",
        ("loopback", 0.5): "first",
        ("loopback", 1.0): "second",
    }
    assert rows["1gbit", 1.0]["throughput_ratio"] == 1.88

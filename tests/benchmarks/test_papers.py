"""The benchmark of the papers' tables has the keys that readers of its JSON rely on."""

from __future__ import annotations

import json

from benchmarks.papers.tables import bbgrap, hypar, soybean, tofu


def test_json_has_every_table() -> None:
    found = json.loads(json.dumps({"hypar": hypar(), "soybean": soybean(), "tofu": tofu()}))
    assert len(found["hypar"]) == 10
    assert all({"dp_gb", "hypar_gb", "plan"} <= of.keys() for of in found["hypar"].values())
    assert found["soybean"].keys() == {"mlp5", "mlp4"}
    assert found["tofu"].keys() == {"table2", "search_s", "ranking"}
    assert len(found["tofu"]["table2"]) == 21
    differing = [name for name, of in found["tofu"]["table2"].items() if of["gb"] != of["gb_published"]]
    assert differing == [name for name, of in found["tofu"]["table2"].items() if of["reason"]]


def test_b10_b11_b12_from_real_programs() -> None:
    found = bbgrap()
    assert [of["initial_mb"] for of in found["resnet50_channels"].values()] == [44.455936, 88.911872]
    assert all([of["initial"], of["optimized"]] == of["derived"] for of in found["rows"].values())

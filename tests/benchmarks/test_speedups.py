"""The table of speed-ups shows what was measured of `auto`, and is put between its marks."""

import json

from benchmarks.speedups import BEGIN, END, rows_of_auto, table, write_table


def row(model, link, speedup, **other):
    asked = {"planner": "auto", "objective": "latency", "transfer_dtype": "exact", "inputs": "floats", "batch": 1}
    facts = {"date": "2026-11-22T10:00:00+00:00", "processor": "P", "onnxruntime": "1"}
    return {"model": model, "link": link, "speedup": speedup, "facts": facts, **asked, **other}


def test_cells_are_of_auto_and_missing_ones_are_empty(tmp_path):
    rows = [row("resnet50", "loopback", 1.625), row("resnet50", "1gbit", 9, planner="bbgrap"), row("vgg16", "100mbit", 1.1)]
    (tmp_path / "network-some.json").write_text(json.dumps(rows))
    lines = table(rows_of_auto(tmp_path)).splitlines()
    assert lines[2:4] == ["| ResNet50 | 1.62 |  |  |  |", "| VGG16 |  |  |  | 1.10 |"]
    assert lines[-1].startswith("2026-11-22, P, onnxruntime 1;")


def test_only_what_is_between_the_marks_changes(tmp_path):
    (tmp_path / "network-some.json").write_text(json.dumps([row("resnet50", "loopback", 1.5)]))
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    other.write_text("no marks\n")
    assert write_table((page, other), tmp_path) == [page]
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| | loopback")
    assert text.endswith(f"{END}\nafter\n")
    assert other.read_text() == "no marks\n"

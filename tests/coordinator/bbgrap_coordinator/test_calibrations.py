"""The files of calibrations: what was kept is read again, and what is no calibration is left alone."""

import json
import logging
import os

import pytest
from bbgrap_coordinator.calibrations import CalibrationStore
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.auto.calibrate import LEAST, MOST, MachineFactors
from bbgrap.control.calibrations import MAX_MODELS
from bbgrap.control.coordinator_events import KeepCalibration

MODEL, TYPICAL_S = "ab" * 32, 0.5
GOOD = {"format": 1, "machines": {"a": {"typical_s": TYPICAL_S, "factors": {"conv": 1.5, "": 1.5}}}}
MACHINES = {"a": MachineFactors(TYPICAL_S, {"conv": 1.5, "": 1.5})}


def changed(*keys_and_value):
    """The good file with one place changed."""
    content = json.loads(json.dumps(GOOD))
    *path, last, value = keys_and_value
    place = content
    for key in path:
        place = place[key]
    place[last] = value
    return json.dumps(content)


machines = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(MachineFactors, st.floats(1e-9, 1e9), st.dictionaries(st.text(max_size=8), st.floats(LEAST, MOST))),
    max_size=4,
)


@given(machines)
def test_what_is_kept_is_read_again(tmp_path_factory, of):
    directory = tmp_path_factory.mktemp("calibrations")
    CalibrationStore(directory).keep(KeepCalibration(MODEL, of))
    assert CalibrationStore(directory).read() == {MODEL: of}


def test_the_newest_files_stay_and_are_read_last(tmp_path):
    store = CalibrationStore(tmp_path)
    models = [f"{number:064x}" for number in range(MAX_MODELS + 3)]
    for number, model in enumerate(models):
        store.keep(KeepCalibration(model, MACHINES))
        os.utime(tmp_path / f"{model}.json", (number, number))
    store.keep(KeepCalibration(models[-2], MACHINES))
    assert list(CalibrationStore(tmp_path).read()) == [*models[3:-2], models[-1], models[-2]]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        "\xff",
        changed("format", 2),
        changed("machines", []),
        changed("machines", "a", 1),
        changed("machines", "a", "typical_s", "1"),
        changed("machines", "a", "typical_s", 0.0),
        changed("machines", "a", "typical_s", float("inf")),
        changed("machines", "a", "factors", []),
        changed("machines", "a", "factors", "conv", "1"),
        changed("machines", "a", "factors", "conv", True),
        changed("machines", "a", "factors", "conv", -1.0),
        changed("machines", "a", "factors", "conv", 1e9),
        changed("machines", "a", "factors", "conv", float("nan")),
        changed("machines", {f"m{number}": GOOD["machines"]["a"] for number in range(65)}),
    ],
)
def test_a_broken_file_is_ignored_and_said_so(tmp_path, caplog, content):
    store = CalibrationStore(tmp_path)
    store.keep(KeepCalibration("12" * 32, MACHINES))
    (tmp_path / f"{MODEL}.json").write_bytes(content.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert store.read() == {"12" * 32: MACHINES}
    assert f"{MODEL}.json' is ignored" in caplog.text
    store.keep(KeepCalibration(MODEL, MACHINES))
    assert store.read()[MODEL] == MACHINES


def test_other_files_are_none_of_its_business(tmp_path):
    (tmp_path / "notes.json").write_text(json.dumps(GOOD))
    assert CalibrationStore(tmp_path).read() == {}
    assert (tmp_path / "notes.json").exists()


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path, caplog):
    store = CalibrationStore(tmp_path / "calibrations")
    (tmp_path / "calibrations").rmdir()
    (tmp_path / "calibrations").write_text("a file where the folder was")
    store.keep(KeepCalibration(MODEL, MACHINES))
    assert "cannot be stored" in caplog.text

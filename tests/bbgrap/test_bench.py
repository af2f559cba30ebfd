import pytest

from bbgrap.bench import bench
from bbgrap.errors import UsageError


@pytest.mark.parametrize(("runs", "contenders"), [(0, ["one"]), (1, [])])
def test_nothing_to_measure(tmp_path, runs, contenders):
    with pytest.raises(UsageError, match="expected at least one run and one planner"):
        bench(tmp_path / "m.onnx", {}, None, contenders, runs=runs)

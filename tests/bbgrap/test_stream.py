import pytest

from bbgrap.errors import UsageError
from bbgrap.stream import BLOCKS, measure_stream


@pytest.mark.parametrize(("requests", "contenders"), [(BLOCKS - 1, ["one"]), (BLOCKS, [])])
def test_nothing_to_measure(tmp_path, requests, contenders):
    with pytest.raises(UsageError, match=f"expected at least {BLOCKS} requests and one planner"):
        measure_stream(tmp_path / "m.onnx", {}, None, contenders, requests=requests)

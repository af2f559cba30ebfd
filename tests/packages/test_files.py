"""The models that the packages ship, planned over two agents: the same answers as onnxruntime's, to inputs of the kind they are made for.

The programs themselves are mostly served by standbys, as each request has a shape of its own; here the plans are what is judged.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import bbgrap
from bbgrap.engine.reference import Reference
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.graph.types import Array
from bbgrap.planners.options import PlanOptions

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]

FOLDERS = ("rapidocr/models", "magika/models", "silero_vad/data")
PLANS = [PlanOptions("bbgrap", "rows"), PlanOptions("bbgrap", "channels"), PlanOptions("bbgrap", "inputs"), PlanOptions("widest")]


def shipped() -> list[Path]:
    """Return the model files in the packages that are installed; packages are looked for without being imported."""
    found: list[Path] = []
    for folder in FOLDERS:
        package, _, inner = folder.partition("/")
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            found += sorted(Path(spec.submodule_search_locations[0], inner).rglob("*.onnx"))
    return found


def drawn_text(height: int, width: int) -> Array:
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(page).text((8, 2), "Partition over 2 machines", fill="black", font=ImageFont.load_default(32))
    return np.asarray(page, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1


def sound(frames: int) -> Array:
    dice, time = np.random.default_rng(4), np.arange(frames * 576) / 16000
    return (0.3 * np.sin(2 * np.pi * 180 * time) + 0.02 * dice.standard_normal(time.size)).astype(np.float32).reshape(frames, 576)


def inputs_for(path: Path, names: list[str]) -> dict[str, Array]:
    """Return inputs for a model, by what its file is called."""
    match path.parts[-3:], path.stem:
        case (("silero_vad", "data", _), stem):
            state = (2, 1, 128)
            known = {"input": sound(50 if "sequence" in stem else 1), "sr": np.array(16000), "state": np.zeros(state, np.float32)}
            known |= {name: np.zeros((1, 1, 128), np.float32) for name in ("h", "c")}
            return {name: known[name] for name in names}
        case (("rapidocr", "models", _), stem):
            return {names[0]: drawn_text(*((320, 480) if "_det_" in stem else (48, 192) if "_cls_" in stem else (48, 400)))}
        case _:
            text = Path(__file__).read_bytes()
            return {names[0]: np.frombuffer(text[:1024] + text[-1024:], np.uint8).astype(np.int32)[None].repeat(3, 0)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with bbgrap.LocalCluster(2, cache_dir=tmp_path_factory.mktemp("weights")) as cluster:
        yield cluster


@pytest.mark.skipif(not shipped(), reason="no package is installed; run 'make test-packages'")
@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_shipped_model_is_planned_and_answers_as_on_onnxruntime(cluster, path: Path) -> None:
    feeds = inputs_for(path, [declared.name for declared in Reference(path).inputs])
    witnesses = ReferenceAnswers(path, feeds)
    for options in PLANS:
        session = bbgrap.InferenceSession(path, cluster=cluster, options=options)
        found = witnesses.judge(session.run(None, feeds))
        assert found.verified, f"{path.name}, {options.planner} {options.split}: {found.text}"
        assert (session.plan.report["planner"], len(session.plan.agents)) == (options.planner, 2)

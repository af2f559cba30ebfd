"""Decoders that onnxruntime's tools for language models make of transformers' classes: two agents write the words of plain onnxruntime."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import bbgrap
from bbgrap.graph.types import Array
from tests.sequence_models import Alone

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not all(map(find_spec, ("onnxruntime_genai", "torch", "transformers"))), reason="onnxruntime-genai or torch is not installed"
    ),
]

WORDS, PROMPT, FURTHER, WINDOW = 512, 20, 8, 16
SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WORDS,
    "max_position_embeddings": 256,
    "intermediate_size": 256,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 0,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
MIXED = ["conv", "full_attention", "conv", "full_attention"]


def qwen35() -> Any:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    heads = {"linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    turns = {
        "rope_type": "default",
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e7,
    }
    text = {**SIZES, **heads, "head_dim": 32, "rope_parameters": turns}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 128}
    return Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision))


def lfm2() -> Any:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    return Lfm2ForCausalLM(Lfm2Config(**SIZES, layer_types=MIXED, block_auto_adjust_ff_dim=False))


def lfm2_with_experts() -> Any:
    from transformers import Lfm2MoeConfig, Lfm2MoeForCausalLM

    return Lfm2MoeForCausalLM(Lfm2MoeConfig(**SIZES, **EXPERTS, layer_types=MIXED, num_dense_layers=1))


def gpt_oss() -> Any:
    from transformers import GptOssConfig, GptOssForCausalLM

    kinds = ["sliding_attention", "full_attention"] * 2
    own = {"head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 4, "sliding_window": WINDOW, "layer_types": kinds}
    return GptOssForCausalLM(GptOssConfig(**SIZES, **own))


def gemma2() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=32, sliding_window=WINDOW))


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True))


def exported(make: Callable[[], Any], precision: str, folder: Path) -> Path:
    """Return a model's file, as the tool writes it for processors."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    make().float().save_pretrained(folder / "torch")
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, "w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder / "torch")
    places = ["-i", folder / "torch", "-o", folder / "onnx", "-c", folder / "cache"]
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *places, "-p", precision, "-e", "cpu"]
    done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "onnx" / "model.onnx"


def fed(inputs: list[ort.NodeArg], words: Array, total: int) -> dict[str, Array]:
    """Return a request's inputs that are no state."""
    places = np.arange(total - words.shape[1], total)
    feed = {"input_ids": words, "attention_mask": np.ones((1, total), np.int64)}
    given = {item.name: len(item.shape) for item in inputs}
    if "position_ids" in given:
        feed["position_ids"] = np.broadcast_to(places, (3,) * (given["position_ids"] == 3) + (1, places.size)).copy()
    return feed


@pytest.mark.parametrize(
    ("make", "precision"),
    [*product((qwen35, lfm2, lfm2_with_experts, gemma2, qwen3), ("fp32", "int4")), (gpt_oss, "fp32")],  # in 4 bits the tool wants its own
)
def test_two_agents_write_the_words_of_plain_onnxruntime(make: Callable[[], Any], precision: str, tmp_path: Path) -> None:
    path = exported(make, precision, tmp_path)
    inputs = ort.InferenceSession(path).get_inputs()
    with bbgrap.LocalCluster(2, cache_dir=tmp_path / "weights") as cluster:
        session = bbgrap.InferenceSession(path, cluster=cluster, planner="tensor-parallel", state="auto")
        state = dict(session.options.state)
        alone = Alone(path, state, begun([item for item in inputs if item.name in state]))
        words, total = np.random.default_rng(1).integers(2, WORDS, (1, PROMPT)), 0
        with session.sequence() as sequence:
            for _ in range(FURTHER):
                total += words.shape[1]
                feed = fed(inputs, words, total)
                (logits,), timeline = sequence.run_recorded(["logits"], feed)
                assert timeline is not None, "it ran elsewhere than in the plan"
                (want,) = alone.run(feed)
                np.testing.assert_allclose(logits, want, rtol=0, atol=1e-4 * np.abs(want).max())
                words = want[:, -1:].argmax(axis=-1)
        assert len(session.plan.report["nodes_used"]) == 2


def begun(state: list[ort.NodeArg]) -> dict[str, Array]:
    """Return the state before the first word; caches of the last words have room for these."""
    sizes = {"batch_size": 1, "past_sequence_length": 0, "past_sliding_length": WINDOW, "kv_cache_dim": 32}
    return {item.name: np.zeros([sizes.get(size, size) for size in item.shape], np.float32) for item in state}

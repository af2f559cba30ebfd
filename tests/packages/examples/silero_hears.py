"""Silero VAD, as its README uses it: when there is speech in a minute of sound, by its model for pieces and by that for sequences."""

from __future__ import annotations

import json

import torch
from silero_vad import VADIterator, get_speech_timestamps, get_speech_timestamps_sequence, load_silero_vad
from sound import RATE, minute


def main() -> None:
    sound = torch.from_numpy(minute())
    model = load_silero_vad(onnx=True)
    heard = get_speech_timestamps(sound, model, sampling_rate=RATE)
    iterator, events = VADIterator(model, sampling_rate=RATE), []
    for start in range(0, 20 * RATE - 511, 512):
        events += [event] if (event := iterator(sound[start : start + 512], return_seconds=True)) else []
    iterator.reset_states()
    narrow = get_speech_timestamps(sound[: 20 * RATE : 2], model, sampling_rate=RATE // 2)
    older = get_speech_timestamps(sound[: 20 * RATE], load_silero_vad(onnx=True, opset_version=15), sampling_rate=RATE)
    sequence = get_speech_timestamps_sequence(sound.numpy(), load_silero_vad(sequence=True), sampling_rate=RATE)
    print(json.dumps({"pieces": heard, "stream": events, "8 kHz": narrow, "opset 15": older, "sequence": sequence}))


main()

"""A minute of made sound in which bursts like speech stand in quiet noise."""

from __future__ import annotations

import numpy as np

RATE = 16000
VOWELS = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410)]
"""Formants of a, i, u, e, o in hertz."""


def minute(seconds: int = 60) -> np.ndarray:
    """Return samples at `RATE`, float32 in -1..1: every 4 s there are 2.4 s of syllables, in changing voices."""
    dice = np.random.default_rng(7)
    sound = 0.002 * dice.standard_normal(seconds * RATE)
    for start in range(1, seconds - 3, 4):
        at = start * RATE
        for number in range(12):
            length = int(RATE * dice.uniform(0.12, 0.2))
            sound[at : at + length] += syllable(VOWELS[number % 5], 110 + 60 * (start % 3) + dice.uniform(-15, 15), length)
            at += length
    return np.clip(sound, -1, 1).astype(np.float32)


def syllable(formants: tuple[int, int, int], pitch: float, samples: int) -> np.ndarray:
    """Harmonics of a gliding pitch, each as strong as the nearest formants make it, swelling and fading."""
    time = np.arange(samples) / RATE
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.15 * np.sin(2 * np.pi * 4 * time))) / RATE
    total = np.zeros(samples)
    for harmonic in range(1, int(3500 / pitch)):
        frequency = harmonic * pitch
        strength = sum(1 / (1 + ((frequency - formant) / 80) ** 2) for formant in formants) + 0.02
        total += strength / harmonic**0.5 * np.sin(harmonic * phase)
    return 0.3 * np.hanning(samples) ** 0.5 * total / np.abs(total).max()

"""Importing this lets everything in the process that uses `onnxruntime.InferenceSession` from then on use ours; bbgrap keeps onnxruntime's.

Interpreters that `multiprocessing` starts import it, too: else what they compute would be computed on this machine, without a word.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import spawn

import onnxruntime
from onnxruntime.capi import onnxruntime_inference_collection

from bbgrap.onnxruntime import OURS

for _home in (onnxruntime, onnxruntime_inference_collection):
    for _name, _ours in OURS.items():
        setattr(_home, _name, _ours)

_spawning = spawn.get_command_line


def _get_command_line(**kwds: object) -> list[str]:
    words = _spawning(**kwds)
    if "-c" in words:  # not in a frozen program
        code = words.index("-c") + 1
        words[code] = f"import {__name__}; {words[code]}"
    return words


spawn.get_command_line = _get_command_line
multiprocessing.set_forkserver_preload([__name__])  # and not "__main__", which would come first, and take names of onnxruntime

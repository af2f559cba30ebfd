"""Requests that wait for each other, without a cluster."""

import asyncio
import time

import numpy as np

from bbgrap.serving.batching import Batcher

DELAY_S = 0.05


def test_who_waits_for_a_batch_to_be_filled_learns_when_it_began():
    async def run(feed, names, has_ended):
        if len(feed["x"]) == 2:
            raise ValueError("only alone")
        return [feed["x"]]

    async def waited_ns(*rows, delay_s=DELAY_S):
        batcher = Batcher(run, 8, delay_s, lambda: 1)
        came = time.perf_counter_ns()
        return [began - came for _, began in await asyncio.gather(*(batcher.run({"x": np.zeros(count)}, None) for count in rows))]

    delay = DELAY_S * 1e9 * 0.9
    first, second = asyncio.run(waited_ns(1, 2))
    assert first == second > delay
    assert all(waited > delay for waited in asyncio.run(waited_ns(1, 1))), "they ran alone in the end"
    assert asyncio.run(waited_ns(8, delay_s=60))[0] < 60e9, "a full one waits for nobody"

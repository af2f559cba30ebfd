"""A client that asks a cluster for ResNet50 until it is told to stop, and says how its answers were.

    python -m tests.deploy.client FOLDER        with BBGRAP_COORDINATOR, and a token or the coordinator's own machine

`FOLDER/answers` is the number of answers so far, once two nodes divide the work;
`FOLDER/stop` is what ends it, `FOLDER/verdict.json` what it says in the end.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.errors import BbgrapError
from bbgrap.session import InferenceSession, connect
from bbgrap.zoo import materialize

LONGEST_S = 400
NODES = 2


def run(folder: Path, address: str) -> dict[str, object]:
    path = materialize("resnet50", folder)
    rng = np.random.default_rng(0)
    started = time.monotonic()
    failures: list[str] = []
    count = 0
    with connect(address, 30) as connection:
        session = InferenceSession(path, cluster=connection, planner="bbgrap")  # it divides among all, so whoever is lost had a part
        feeds = {session.get_inputs()[0].name: rng.standard_normal((1, 3, 224, 224), np.float32)}
        session.prepare({name: array.shape for name, array in feeds.items()})
        nodes = 0
        first = last = None
        while not (folder / "stop").exists() and time.monotonic() - started < LONGEST_S:
            try:
                last = session.run(None, feeds)
                first = first or last
                assert first is not None
                np.testing.assert_allclose(last[0], first[0], rtol=1e-3, atol=1e-3)
                count += 1
                nodes = max(nodes, len(session.plan.report["nodes_used"]))
            except (BbgrapError, AssertionError) as error:
                failures.append(str(error))
            if nodes == NODES:  # before, a node that is lost might have had no part
                (folder / "answers").write_text(str(count))
    assert first is not None, "the client was stopped before its first answer"
    assert last is not None
    witnesses = ReferenceAnswers(path, feeds)
    return {
        "answers": count,
        "failures": failures,
        "nodes": nodes,
        "verified": witnesses.judge(first).verified and witnesses.judge(last).verified,
    }


if __name__ == "__main__":
    import os

    home = Path(sys.argv[1])
    (home / "verdict.json").write_text(json.dumps(run(home, os.environ["BBGRAP_COORDINATOR"])))

"""Between nanny and worker."""

import socket
import struct
import threading

import numpy as np
import pytest
from bbgrap_agent.pipe import FROM_WORKER, MAX_QUEUED_BYTES, TO_WORKER, Pipe

from bbgrap.control import agent_events as ae
from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import DType, TensorType
from bbgrap.protocol import messages as m
from tests.bbgrap.protocol.test_codec import AGENT, COMMANDS, DIGEST

FROM = [
    ae.WorkerReady(AGENT[0]),
    ae.WeightsChecked(7, (DIGEST,)),
    ae.WeightArrived(DIGEST, 5, complete=True),
    ae.DeploymentLoaded(7, "no", (), (1, 2)),
    *(x for x in AGENT if isinstance(x, m.RequestFailed | m.Recorded | m.Measured | m.LinksMeasured | m.LinksTried | m.LinkBroken)),
]
TO = [
    ae.CheckWeights(7, (DIGEST,)),
    m.Release(7),
    m.Abandon(7, 8, 0.5),
    *(
        x
        for x in COMMANDS
        if isinstance(x, m.WeightChunk | m.Deploy | m.Measure | m.MeasureLinks | m.EndMeasuring | m.TryLinks | m.AnswerPings)
    ),
]


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    pipes = Pipe(here, TO_WORKER), Pipe(there, FROM_WORKER)
    yield pipes
    for pipe in pipes:
        pipe.close()


def test_everything_that_is_said_arrives_in_order(ends):
    here, there = ends
    for message in TO:
        here.send(message)
    for message in FROM:
        there.send(message)
    assert [TO_WORKER.decode(there.receive()) for _ in TO] == TO
    assert [FROM_WORKER.decode(here.receive()) for _ in FROM] == FROM
    here.finish()
    assert there.receive() is None


def test_chunks_arrive_whole_and_too_many_are_not_kept(ends):
    here, there = ends
    content = np.random.default_rng(0).bytes(1 << 20)
    chunk = m.WeightChunk(DIGEST, TensorType(DType.UINT8, (1 << 20,)), 0, 1 << 20, (content,))
    count = 2 * MAX_QUEUED_BYTES // len(content)
    for _ in range(count):
        here.send(chunk)
    here.finish()
    came = 0
    while (frames := there.receive()) is not None:
        came += 1
        assert TO_WORKER.decode(frames) == chunk
    assert 1 <= came <= MAX_QUEUED_BYTES // len(content) + 2


@pytest.mark.parametrize(
    "content",
    [struct.pack("!Q", 3), struct.pack("!Q", 0), struct.pack("!QQ", 1, 1 << 40), struct.pack("!QQQ", 2, 0, 5 << 20)],
    ids=["frames", "none", "header", "chunk"],
)
def test_what_no_worker_says_is_refused_before_it_takes_memory(content):
    here, there = socket.socketpair()
    pipe = Pipe(here, TO_WORKER)
    there.sendall(content)
    with pytest.raises(RemoteProtocolError, match="pipe: "):
        pipe.receive()
    there.close()
    pipe.close()


def test_a_thread_that_waits_is_let_go_when_its_end_is_closed():
    here, there = socket.socketpair()
    pipe = Pipe(here, TO_WORKER)
    got = []
    thread = threading.Thread(target=lambda: got.append(pipe.receive()))
    thread.start()
    pipe.close()
    thread.join(60)
    assert got == [None]
    there.close()

"""A real agent driven by a coordinator without a mind of its own: the test says and sends what it likes, and sees all that comes."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import psutil
import zmq
from onnx import TensorProto, helper

from bbgrap.compiler.artifacts import SegmentModel, WeightRef
from bbgrap.graph.types import Array, DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol import messages as m
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.directions import TO_AGENT, TO_COORDINATOR
from bbgrap.protocol.key_messages import Enrol, Enrolled
from bbgrap.protocol.tensors import encode_array
from bbgrap.runtime.schedule import BufferSpec, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.pings import PingAnswers
from bbgrap.transport.tcp import TcpDataPlane

M = TypeVar("M", bound=m.AgentMessage)

WITHIN_S = 30.0
WEIGHT = np.arange(2, dtype=np.float32)
HOST = 1
ROW = BufferSpec("row", DType.FLOAT, (2,))
SCHEDULE = Schedule(0, HOST, (ROW, ROW), (LocalReceive(1, HOST, (0,)), LocalRun(0, (0,), (1,)), LocalSend(3, HOST, (LocalPart(1, None),))))
ROW_TYPE = {"elem_type": TensorProto.FLOAT, "shape": [2]}


class BareCoordinator:
    """One agent's coordinator.

    Invariants: `heard` is what came and nobody has taken yet, heartbeats apart, which are in `beats` with their times.
    """

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.server = ControlServer(self.context, "tcp://127.0.0.1:*")
        self.plane = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")
        self.folder = folder
        self.identity = b""
        self.heard: list[m.AgentMessage] = []
        self.beats: list[tuple[float, m.Heartbeat]] = []
        self.answering = True
        self.pings: PingAnswers | None = None
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start an agent."""
        command = [sys.executable, "-m", "bbgrap_agent.main", "--join", self.server.address, "--threads", "1", "--insecure", "--until-eof"]
        with (self.folder / "agent.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--cache-dir", str(self.folder / "cache"), *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def join(self, membership: int = 1, keep: tuple[int, ...] = ()) -> m.Join:
        """Wait for an agent and welcome it."""
        join = self.next(m.Join)
        self.welcome(membership, keep)
        return join

    def welcome(self, membership: int = 1, keep: tuple[int, ...] = ()) -> None:
        self.say(m.Welcome(membership, 0.1, 5.0, keep))

    def say(self, message: m.AgentCommand) -> None:
        self.server.send(self.identity, TO_AGENT.encode(message))

    def listen(self, seconds: float) -> None:
        """Take what comes for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.poll(min(left, 0.02))

    def new_plane(self) -> None:
        """Go away from the data plane, and come back at another address."""
        self.plane.close()
        self.plane = TcpDataPlane("tcp://127.0.0.1:0", "127.0.0.1")

    def answers_pings(self, address: str) -> None:
        """Answer those of an agent from now on."""
        self.pings = PingAnswers(self.plane)
        self.pings.allow((m.Peer(0, "a", address),))

    def poll(self, seconds: float) -> None:
        self.server.socket.poll(max(1, round(seconds * 1000)))
        if self.pings is not None and (arrival := self.plane.receive(0)) is not None:
            self.pings.answer(Frame.parse(arrival.header), arrival.payload)
        while (received := self.server.receive()) is not None:
            self.identity, frames = received
            message = TO_COORDINATOR.decode(frames)
            if isinstance(message, Enrol):
                self.server.send(self.identity, TO_AGENT.encode(Enrolled(b"", b"")))
                continue
            if isinstance(message, m.Heartbeat):
                self.beats.append((time.monotonic(), message))
                if self.answering:
                    self.say(m.HeartbeatSeen())
            else:
                self.heard.append(message)

    def next(self, kind: type[M], wanted: Callable[[M], bool] = lambda message: True) -> M:
        """Wait for a message of a kind and take it; what else comes stays."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            for message in self.heard:
                if isinstance(message, kind) and wanted(message):
                    self.heard.remove(message)
                    return message
            self.poll(0.02)
        raise AssertionError(f"no {kind.__name__} came, but {self.heard}; the agent's log:\n{self.log()}")

    def beat(self, wanted: Callable[[m.Heartbeat], bool]) -> m.Heartbeat:
        """Wait for a heartbeat."""
        until, place = time.monotonic() + WITHIN_S, len(self.beats)
        while time.monotonic() < until:
            self.poll(0.02)
            for _, beat in self.beats[place:]:
                if wanted(beat):
                    return beat
        raise AssertionError(f"no such heartbeat came, the last was {self.beats[-1:]}; the agent's log:\n{self.log()}")

    def silent_for(self, seconds: float) -> bool:
        """Wait until no heartbeat has come for so long; whether that came to pass."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            before = len(self.beats)
            self.listen(seconds)
            if len(self.beats) == before:
                return True
        return False

    def deploy(self, epoch: int, segment: SegmentModel, address: str) -> None:
        peers = (m.Peer(0, "a", address), m.Peer(HOST, "host", self.plane.address))
        self.say(m.Deploy(epoch, peers, SCHEDULE, (segment,)))

    def deployed(self, epoch: int, segment: SegmentModel, address: str, weight: Array = WEIGHT) -> None:
        """Deploy, give the weight that is asked for, and wait until it is loaded."""
        self.deploy(epoch, segment, address)
        self.loaded(epoch, weight)

    def loaded(self, epoch: int, weight: Array = WEIGHT) -> None:
        """Give the weight that is asked for, and wait until a deployment is loaded."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            self.poll(0.02)
            for message in list(self.heard):
                match message:
                    case m.WeightsMissing(_, digests):
                        self.heard.remove(message)
                        self.give(digests, weight)
                    case m.Deployed(number) if number == epoch:
                        self.heard.remove(message)
                        return
                    case _:
                        pass
        raise AssertionError(f"epoch {epoch} was not deployed, but {self.heard}; the agent's log:\n{self.log()}")

    def give(self, digests: Iterable[str], weight: Array) -> None:
        """Send the weight that is asked for."""
        for digest in digests:
            content = encode_array(weight)
            self.say(m.WeightChunk(digest, _type_of(weight), 0, len(content), (content,)))

    def ask(self, address: str, epoch: int, request: int, values: tuple[float, float]) -> None:
        """Send a request over the data plane."""
        self.plane.connect(address)
        payload = np.array(values, np.float32).data.cast("B")
        self.plane.send(address, Frame(Kind.DATA, HOST, epoch, request, 1).to_bytes(), payload)

    def answer(self, request: int) -> list[float]:
        """Wait for the answer to a request."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            arrival = self.plane.receive(0.05)
            self.poll(0.001)
            if arrival is not None and Frame.parse(arrival.header).request == request:
                return [float(value) for value in np.frombuffer(arrival.payload, np.float32)]
        raise AssertionError(f"request {request} was not answered; heard {self.heard}; the agent's log:\n{self.log()}")

    def worker_of(self, nanny: subprocess.Popen[bytes]) -> psutil.Process:
        """Wait for the worker's process."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            for child in psutil.Process(nanny.pid).children():
                with contextlib.suppress(psutil.Error):
                    if "bbgrap_agent.worker" in child.cmdline():
                        return child
            self.poll(0.02)
        raise AssertionError(f"the agent has no worker; its log:\n{self.log()}")

    def log(self) -> str:
        return (self.folder / "agent.log").read_text(errors="replace")[-5000:]

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self.server.close()
        self.plane.close()
        self.context.term()


@contextlib.contextmanager
def bare_coordinator(folder: Path) -> Iterator[BareCoordinator]:
    coordinator = BareCoordinator(folder)
    try:
        yield coordinator
    finally:
        coordinator.close()


def gone(pid: int, within_s: float) -> bool:
    """Whether a process that is nobody's child here ends in time."""
    until = time.monotonic() + within_s
    try:
        while time.monotonic() < until:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.02)
    except psutil.NoSuchProcess:
        return True
    return False


# --- models -----------------------------------------------------------------------------------------------------------------------


def adding() -> SegmentModel:
    """Adds a weight."""
    return _segment("adding", [helper.make_node("Add", ["x", "w"], ["y"])], [_external(WEIGHT)], {"w": _ref(WEIGHT)})


def looking_up(table: Array, *, twice: bool = False) -> SegmentModel:
    """Takes from a table what x has the places of, once or twice as much."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "i"], ["g"]),
        helper.make_node("Add" if twice else "Max", ["g", "g"], ["y"]),
    ]
    return _segment("looking up", nodes, [_external(table)], {"w": _ref(table)})


def crashing() -> SegmentModel:
    """Ends its process by SIGFPE when it is loaded: onnxruntime folds a quotient that there is not."""
    return _segment(
        "crashing", [*_quotient("none"), helper.make_node("Add", ["x", "q"], ["y"])], [_whole("least", -(2**31)), _whole("none", -1)], {}
    )


def dividing() -> SegmentModel:
    """Divides the least whole number by the elements of x: where one is -1 there is no quotient, which ends its process by SIGFPE."""
    nodes = [helper.make_node("Cast", ["x"], ["n"], to=TensorProto.INT32), *_quotient("n", "y")]
    return _segment("dividing", nodes, [_whole("least", -(2**31))], {})


def _quotient(divisor: str, answer: str = "q") -> list[onnx.NodeProto]:
    divided = helper.make_node("Div", ["least", divisor], [f"{answer} whole"])
    return [divided, helper.make_node("Cast", [f"{answer} whole"], [answer], to=TensorProto.FLOAT)]


def _whole(name: str, value: int) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT32, [], [value])


def endless(above: float) -> SegmentModel:
    """Computes for ever when the first element of x is larger."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Abs", ["v"], ["u"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", **ROW_TYPE),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("u", **ROW_TYPE)],
    )
    nodes = [*_condition(), helper.make_node("Loop", ["", "c", "x"], ["y"], body=body)]
    return _segment(f"endless{above}", nodes, _thresholds(above), {})


def stuck(above: float) -> SegmentModel:
    """Is in one operator for minutes when the first element of x is larger: every box is compared with all before it."""
    count = 400_000
    body = [
        helper.make_node("Range", ["begin", "count", "one"], ["places"]),
        helper.make_node("Reshape", ["places", "column"], ["corners"]),
        helper.make_node("Add", ["corners", "half"], ["others"]),
        helper.make_node("Concat", ["corners", "corners", "others", "others"], ["boxes"], axis=2),
        helper.make_node("Reshape", ["places", "row"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "all", "begin"], ["chosen"]),
        helper.make_node("ReduceSum", ["chosen"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "number"], ["u"]),
    ]
    constants = [
        helper.make_tensor("begin", TensorProto.FLOAT, [], [0.0]),
        helper.make_tensor("count", TensorProto.FLOAT, [], [float(count)]),
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("half", TensorProto.FLOAT, [1], [0.5]),
        helper.make_tensor("column", TensorProto.INT64, [3], [1, -1, 1]),
        helper.make_tensor("row", TensorProto.INT64, [3], [1, 1, -1]),
        helper.make_tensor("all", TensorProto.INT64, [], [count]),
    ]
    long = helper.make_graph(body, "long", [], [helper.make_tensor_value_info("u", **ROW_TYPE)], constants)
    same = helper.make_node("Identity", ["x"], ["v"])
    short = helper.make_graph([same], "short", [], [helper.make_tensor_value_info("v", **ROW_TYPE)])
    nodes = [*_condition(), helper.make_node("If", ["c"], ["y"], then_branch=long, else_branch=short)]
    return _segment(f"stuck{above}", nodes, _thresholds(above), {})


def _type_of(weight: Array) -> TensorType:
    return TensorType(DType.of(weight.dtype), weight.shape)


def _ref(weight: Array) -> WeightRef:
    return WeightRef(digest_of(weight), _type_of(weight))


def _external(weight: Array) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=weight.shape, data_location=TensorProto.EXTERNAL)
    for field, value in (("location", "weights"), ("offset", "0"), ("length", str(weight.nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = field, value
    return tensor


def _condition() -> list[onnx.NodeProto]:
    return [helper.make_node("Gather", ["x", "zero"], ["f"]), helper.make_node("Greater", ["f", "t"], ["c"])]


def _thresholds(above: float) -> list[TensorProto]:
    return [helper.make_tensor("zero", TensorProto.INT64, [], [0]), helper.make_tensor("t", TensorProto.FLOAT, [], [above])]


def _segment(name: str, nodes: list[onnx.NodeProto], tensors: list[TensorProto], weights: dict[str, WeightRef]) -> SegmentModel:
    graph = helper.make_graph(
        nodes, name, [helper.make_tensor_value_info("x", **ROW_TYPE)], [helper.make_tensor_value_info("y", **ROW_TYPE)], tensors
    )
    skeleton = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    return SegmentModel(name, hashlib.sha256(skeleton).hexdigest(), skeleton, ("x",), ("y",), weights)

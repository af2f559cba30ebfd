"""One message of every kind, for the tests of codecs and the fuzzing of readers."""

from typing import Any

from bbgrap.cluster.types import LinkProfile, NodeProfile, Speed
from bbgrap.compiler.artifacts import SegmentModel, WeightRef
from bbgrap.graph.types import DType, TensorType
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as client
from bbgrap.protocol import inspection as i
from bbgrap.protocol import key_messages as k
from bbgrap.protocol import messages as m
from bbgrap.protocol import status_messages as s
from bbgrap.protocol.faults import Fault
from bbgrap.runtime.recording import Record, StepLabel
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule

DIGEST = "0123456789abcdef" * 4
PROFILE = NodeProfile("a", 0.5, 2, 1, 10, (LinkProfile("b", 1e8, 1e-4),), "rack", (Speed("conv", 1e9),))
TENSOR = m.TensorHeader("x", DType.FLOAT, (1, 3))
SCHEDULE = Schedule(
    0,
    2,
    (
        BufferSpec("x", DType.FLOAT, (4, 4)),
        BufferSpec("y", DType.FLOAT, (4, 4)),
        BufferSpec("z", DType.STRING, None),
        BufferSpec("j", DType.FLOAT, (4, 4)),
    ),
    (
        LocalReceive(0, 2, (0, 2), "int8"),
        LocalRun(0, (0,), (1,)),
        LocalJoin(3, ((LocalPart(1, (((0, 2), (3, 4)), ((0, 4),))), (((0, 3),), ((0, 4),))), (LocalPart(0, None), None))),
        LocalSend(1, 1, (LocalPart(3, (((0, 1),), ((0, 4),))), LocalPart(2, None))),
    ),
)
SEGMENT = SegmentModel("s", DIGEST, b"model", ("x",), ("y",), {"w": WeightRef(DIGEST, TensorType(DType.FLOAT, (2, 2)))})
RECORD = Record(
    1,
    (StepLabel("receive", "x", 3, 2, 64), StepLabel("compute", "s: y", 0), StepLabel("send", "y", 4, 0, 64)),
    ((5, 8, 9), (9, 9, 12), (12, 12, 13)),
    20,
)
PEERS = (m.Peer(0, "a", "tcp://a:1", "ab" * 32), m.Peer(1, "b", "tcp://b:1"), m.Peer(2, "host", "tcp://h:1"))

FACTS = i.MachineFacts(1e9, 4, 2, 1.5, 0.1, 0.0, 0.5, 0.25, 1 << 33, 1 << 32, "/cache", 1 << 36, 1e9)

AGENT: list[Any] = [
    m.Join("a", "0.1.0", "1.31.1", 26, 2, 4, 10, "tcp://a:1", PROFILE),
    m.Join("a", "0.1.0", "1.31.1", 26, 2, 4, 10, "tcp://a:1", None),
    m.Heartbeat(),
    m.WeightsMissing(7, (DIGEST,)),
    m.WeightStored(DIGEST, 5),
    m.Deployed(7),
    m.DeploymentFailed(7, "no", (1, 2)),
    m.RequestFailed(7, 8, "no"),
    m.Recorded(7, 8, RECORD),
    m.Measured(1, PROFILE, ""),
    m.LinksMeasured(1, PROFILE.links, ""),
    m.LinksTried(1, (0, 2)),
    m.LinkBroken("tcp://a:1", "reset"),
    m.WorkerLost("SIGFPE", 7, 8, m.EndedBy.CRASH),
    i.Inspected(1, FACTS),
    m.Leave("bye"),
]
COMMANDS: list[Any] = [
    m.Welcome(3, 0.5, 2.0),
    m.Refused("taken", True),
    m.Rejoin(),
    m.HeartbeatSeen(),
    m.Deploy(7, PEERS, SCHEDULE, (SEGMENT,)),
    m.WeightChunk(DIGEST, TensorType(DType.FLOAT, (2, 2)), 0, 16, (b"0123",)),
    m.Abandon(7, 8, 0.5),
    m.LoadNext(7),
    m.Release(7),
    m.Measure(1),
    m.MeasureLinks(1, PEERS),
    m.EndMeasuring(1),
    m.TryLinks(1, PEERS),
    m.AnswerPings(PEERS),
    i.Inspect(1),
]
CLIENT: list[Any] = [
    client.Hello(1),
    client.ListNodes(1),
    client.OfferModel(1, DIGEST, (client.ModelFile("m.onnx", DIGEST, 5),)),
    client.ModelChunk(1, DIGEST, 0, (b"abc",)),
    client.PrepareModel(1, DIGEST, {"x": (1, 3)}, PlanOptions(split="grid", grid=(1, 2))),
    client.RunModel(1, DIGEST, 3.0, (TENSOR,), (b"0123", b""), True),
    client.MeasureNodes(1, ""),
    client.MeasureUnknown(1),
    client.SetProfile(1, PROFILE),
    s.ReadStatus(1, 17),
    s.ReadPlan(1, DIGEST),
    i.ListProfiles(1),
    i.ForgetProfile(1, "a", True),
    i.InspectNodes(1),
    client.ForkSequence(5, 6),
    client.EndSequence(5),
    client.Cancel(1),
    client.Ask((1, 2)),
]
STATUS = s.NodeStatus("a", "tcp://a:1", "alive", 1, 2, 3, "0.1.0", "1.31.1", 26, None)
LATENCY = s.Latency((0,) * len(s.LATENCY_BUCKETS_S) + (2,), 130.5)
VARIANT = s.VariantStatus("auto", 7, "ready", ("a",), 1, 4, 0.01, 0.02)
PLAN = s.PlanStatus(
    DIGEST, {"x": (1, 3)}, "auto", "latency", "plan", "auto", "measured", 7, ("a",), {"a": 5}, 0.01, 0.02, 4, 0, 1, (VARIANT,),
    (s.SegmentStatus("a", 0, 0.5, 0.25),),
)  # fmt: skip
CLUSTER = s.Status(
    1,
    "0.1.0",
    3,
    1e9,
    1e9 + 5,
    (STATUS,),
    (s.LinkStatus("a", "b", 1e8, 1e-4, True),),
    (s.ModelStatus(DIGEST, "m", {"done": 2}, LATENCY, 0.5, 1, 2, ("a",), (PLAN,)),),
    (s.ExchangeStatus("a", "b", 12),),
    (s.ClusterEvent(1, 1e9, "joined", "a joined", "a"),),
)
ANSWERS: list[Any] = [
    client.Greeting(1, "0.1.0"),
    client.Nodes(1, (STATUS,)),
    client.ModelMissing(1, (DIGEST,)),
    client.ModelStored(1, 5, True),
    client.Progress(1, "planning", 0, 1),
    client.ModelPrepared(1, DIGEST, 7, ("a", "b"), "{}"),
    client.RunResult(1, 7, (TENSOR,), (b"0123",), (RECORD,)),
    client.Profiles(1, (PROFILE,)),
    CLUSTER,
    s.PlanShown(1, "{}", ("a", "coordinator"), (RECORD,), 1e9),
    i.KnownProfiles(1, (PROFILE,), ()),
    i.Inspection(1, FACTS, (i.NodeFacts("a", FACTS, -0.5, 0.25),), ("b",), (i.RequestedPlan(DIGEST, "x 1x3", ("a",), "slow", 2),)),
    client.Failed(1, Fault.PLAN, "no"),
    client.StillWorking((1, 2), (1,)),
]

KEY = k.KeyStatus("laptop", "client", DIGEST, 1.5, 0.0, 0.0, "", 1)
KEYS: list[Any] = [
    k.Enrol("a", DIGEST, b"request"),
    k.CreateToken(1, "client", "laptop", 60.0),
    k.ListTokens(2),
    k.RevokeToken(3, "laptop"),
    k.RotateToken(4, "laptop", 60.0),
]
ANSWERS += [k.TokenMade(1, "bbgrap-client-x"), k.Tokens(2, (KEY,))]
COMMANDS += [k.Enrolled(b"certificate", b"authority")]

"""Statuses as a coordinator tells them, for the tests of what is made of them."""

from dataclasses import replace

from bbgrap.protocol import status_messages as s

DIGEST = "0123456789abcdef" * 4
NOW = 1_800_000_000.0


def latency(*seconds: float) -> s.Latency:
    """What a coordinator keeps of requests that took so long."""
    counts = [0] * (len(s.LATENCY_BUCKETS_S) + 1)
    for value in seconds:
        counts[next((place for place, bound in enumerate(s.LATENCY_BUCKETS_S) if value <= bound), len(s.LATENCY_BUCKETS_S))] += 1
    return s.Latency(tuple(counts), sum(seconds))


def node(name: str, state: str = "alive") -> s.NodeStatus:
    return s.NodeStatus(
        name,
        f"tcp://{name}:1",
        state,
        4,
        4,
        16 << 30,
        "0.1.0",
        "1.31.1",
        26,
        None,
        since=NOW - 7300,
        free_bytes=12 << 30,
        busy=0.43,
        running=2,
    )


PLAN = s.PlanStatus(
    plan="fe" * 32,
    shapes={"input": (1, 3, 224, 224)},
    planner="auto",
    objective="latency",
    serves="plan",
    variant="auto",
    why="timed in turns: auto 42.1 ms, planner 'single' 77.0 ms",
    epoch=7,
    nodes=("left", "right"),
    weight_bytes={"left": 51_100_000, "right": 50_000_000},
    predicted_s=0.040,
    measured_s=0.042,
    requests=12,
    waiting=3,
    running=1,
    variants=(s.VariantStatus("auto", 7, "ready", ("left", "right"), 1, 12, 0.040, 0.042),),
    segments=(s.SegmentStatus("left", 0, 0.019, 0.020), s.SegmentStatus("right", 0, 0.0, 0.018)),
)
MODEL = s.ModelStatus(
    DIGEST,
    "resnet50",
    {"done": 12, "failed": 1, "cancelled": 0, "refused": 2},
    latency(*[0.04] * 6, *[0.1] * 6),
    0.5,
    3,
    1,
    ("left",),
    (PLAN,),
)
STATUS = s.Status(
    1,
    "0.1.0",
    3,
    NOW - 8000,
    NOW,
    (node("left"), node("right"), node("gone", "lost"), node("away", "left")),
    (s.LinkStatus("left", "right", 117.5e6, 2e-4, is_up=True), s.LinkStatus("right", "coordinator", 0.0, 0.0, is_up=False)),
    (MODEL,),
    (s.ExchangeStatus("left", "right", 305_152),),
    (s.ClusterEvent(1, NOW - 60, "joined", "agent 'left' joined; agents: 1", "left"),),
)


def later(seconds: float, *more: float) -> s.Status:
    """The status some seconds later, when requests have been answered that took so long."""
    counts = latency(*more)
    added = tuple(a + b for a, b in zip(MODEL.latency.counts, counts.counts, strict=True))
    model = replace(
        MODEL,
        requests={**MODEL.requests, "done": 12 + len(more)},
        latency=s.Latency(added, MODEL.latency.sum_s + counts.sum_s),
        queued_s=MODEL.queued_s + 0.1 * len(more),
    )
    return replace(STATUS, now=NOW + seconds, models=(model,))

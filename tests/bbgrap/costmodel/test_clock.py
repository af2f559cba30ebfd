"""The clock: nobody receives before it was sent, ways are shared, and what is known is exact."""

from itertools import pairwise

import pytest
from hypothesis import given

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, Network, NodeProfile
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.clock import Act, Await, Busy, Post, run_clock
from bbgrap.costmodel.messages import AT_ONCE_BYTES, COLD_MESSAGE_S, NetworkModel
from bbgrap.errors import ProgramError
from bbgrap.graph import Graph
from bbgrap.planners.options import PlanOptions
from tests.partition import compiled
from tests.random_models import clusters, networks, plan_options


class Slow(NetworkModel):
    """Links of 1000 bytes/s and half a second; every device is a machine, and messages take what they are given to."""

    def __init__(self, machines: int = 10, handling_s: float = 0.0) -> None:
        """Put devices from number `machines` on together on one machine."""
        super().__init__(Cluster.even(10))
        self.machines = machines
        self.handling_s = handling_s

    def machine(self, device: int) -> int:
        return min(device, self.machines)

    def link(self, source: int, destination: int) -> Link:
        return Link(1000.0, 0.5)

    def handling(self, device: int, source: int, destination: int, size: int, *, in_a_row: bool = False) -> float:
        return self.handling_s

    def besides(self, device: int, source: int, destination: int, size: int) -> tuple[int, float] | None:
        return None


class Taking(Slow):
    """Device 2 is on the machine of device 0, and its messages to other machines take of that one's processor."""

    def machine(self, device: int) -> int:
        return device % 2

    def besides(self, device: int, source: int, destination: int, size: int) -> tuple[int, float] | None:
        return (0, size / 10_000) if device == 2 and not self.is_memory(source, destination) else None


SLOW = Slow()


def ends(acts: list[list[Act]], network: NetworkModel = SLOW) -> list[float]:
    timeline = run_clock([str(n) for n in range(len(acts))], acts, network)
    return [max((span.stop_s for span in timeline.spans if span.device == d), default=0.0) for d in range(len(acts))]


def test_of_messages_in_a_row_only_the_first_one_is_cold() -> None:
    network = NetworkModel(Cluster.even(3))
    first, next_one = (network.handling(0, 0, 1, 100, in_a_row=in_a_row) for in_a_row in (False, True))
    assert first - next_one == pytest.approx(COLD_MESSAGE_S)
    both: list[Act] = [Post(0, 1, 100), Post(1, 2, 100)]
    others: list[list[Act]] = [[Await(0, 0, 100)], [Await(1, 0, 100)]]
    assert ends([both, *others], network)[0] == pytest.approx(first + next_one)
    apart: list[Act] = [both[0], Busy(1.0, ""), both[1]]
    assert ends([apart, *others], network)[0] == pytest.approx(2 * first + 1.0)


def test_a_message_takes_its_bytes_and_the_latency() -> None:
    assert ends([[Busy(2.0, "a"), Post(0, 1, 1000)], [Await(0, 0, 1000), Busy(1.0, "b")]]) == [2.0, 4.5]


def test_messages_queue_on_the_way_out_and_on_the_way_in() -> None:
    out = [[Post(0, 1, 1000), Post(1, 2, 1000)], [Await(0, 0, 1000)], [Await(1, 0, 1000)]]
    assert ends(out)[1:] == [1.5, 2.5]
    into = [[Post(0, 2, 1000)], [Post(1, 2, 1000)], [Await(0, 0, 1000), Await(1, 1, 1000)]]
    assert ends(into)[2] == 2.5


def test_devices_of_one_machine_do_not_use_its_ways() -> None:
    acts: list[list[Act]] = [[Post(0, 1, 1000)], [Post(1, 2, 5000), Await(0, 0, 1000)], [Await(1, 1, 5000)]]
    assert ends(acts, Slow(machines=1))[1] == 1.5


def test_work_goes_on_while_messages_fly() -> None:
    assert ends([[Post(0, 1, 1000), Busy(5.0, "a")], [Await(0, 0, 1000)]]) == [5.0, 1.5]


def test_handling_costs_both_ends() -> None:
    assert ends([[Post(0, 1, 1000)], [Await(0, 0, 1000)]], Slow(handling_s=0.25)) == [0.25, 2.0]


def test_what_another_device_sends_through_the_network_makes_work_longer_unless_there_is_time_for_it() -> None:
    busy: list[list[Act]] = [[Busy(0.0, "begins"), Busy(3.0, "a"), Busy(1.0, "b")], [Await(0, 2, 1000)], [Post(0, 1, 1000)]]
    assert ends(busy, Taking())[0] == pytest.approx(4.1)
    idle: list[list[Act]] = [[Await(1, 1, 1000), Busy(3.0, "a")], [Await(0, 2, 1000), Post(1, 0, 1000)], [Post(0, 1, 1000)]]
    assert ends(idle, Taking())[0] == pytest.approx(6.0)
    near: list[list[Act]] = [[Await(0, 2, 1000), Busy(3.0, "a")], [], [Post(0, 0, 1000)]]
    assert ends(near, Taking())[0] == pytest.approx(4.5), "what stays on the machine is no packet"


def test_the_coordinator_takes_of_the_agent_beside_it_that_has_no_core_to_spare() -> None:
    def taken(cores: int, threads: int, on: str = "a", rate: float = 125e6) -> float:
        network = Network(Link(rate, 1e-4), coordinator_on=on)
        cluster = Cluster((NodeProfile("a", cores=cores, threads=threads), NodeProfile("b")), network)
        found = NetworkModel(cluster).besides(2, 2, 1, 1_000_000)
        assert found is None or found[0] == 0
        return 0.0 if found is None else found[1]

    assert taken(1, 1) > taken(1, 1, rate=1.2e9) > 0
    assert taken(4, 4) == pytest.approx(taken(1, 1) / 4)
    assert taken(4, 3) == taken(1, 1, on="") == taken(1, 1, rate=3e9) == 0


def test_what_an_agent_sends_takes_of_it_beyond_what_leaves_at_once() -> None:
    cluster = Cluster((NodeProfile("a"), NodeProfile("b"), NodeProfile("c", cores=2, threads=1)), Network(coordinator_on="a"))
    network = NetworkModel(cluster)
    assert network.besides(1, 1, 0, AT_ONCE_BYTES) == (1, 0.0)
    device, seconds = network.besides(1, 1, 0, AT_ONCE_BYTES + 1_000_000) or (None, 0.0)
    assert (device, seconds) == (1, pytest.approx(2e-3))
    assert network.besides(1, 1, 3, 2_000_000), "to the coordinator, too"
    assert network.besides(0, 1, 0, 2_000_000) is None, "the sender pays"
    assert network.besides(2, 2, 0, 2_000_000) is None, "a core is to spare"


def test_who_waits_for_each_other_is_told() -> None:
    with pytest.raises(ProgramError, match=r"\[0, 1\] wait for each other"):
        run_clock(["a", "b"], [[Await(0, 1, 1), Post(1, 1, 1)], [Await(1, 0, 1), Post(0, 0, 1)]], SLOW)


def test_messages_within_a_machine_take_both_ends_and_no_network() -> None:
    nodes = (NodeProfile("a", machine="box"), NodeProfile("b", machine="box"), NodeProfile("c"))
    network = NetworkModel(Cluster(nodes, Network(Link(1e9, 1e-4), coordinator_on="b")))

    for device in (0, 1):
        assert network.handling(device, 0, 1, 1 << 20) > network.handling(device, 0, 1, 0)
    sent = [[Post(0, 1, 1 << 20)], [Await(0, 0, 1 << 20)], [], []]
    begun = network.handling(0, 0, 1, 1 << 20) + network.link(0, 1).latency_s
    assert ends(sent, network)[1] == pytest.approx(begun + network.handling(1, 0, 1, 1 << 20))


@given(networks(), clusters(), plan_options())
def test_timelines_of_programs_are_possible(graph: Graph, cluster: Cluster, options: PlanOptions) -> None:
    program = compiled(graph, cluster, options).optimized
    predictor = Predictor(cluster)
    timeline = predictor.timeline(program)
    sent = {span.message: span.start_s for span in timeline.spans if span.lane == "send"}
    received = {span.message: span.start_s for span in timeline.spans if span.lane == "receive"}
    assert sent.keys() == received.keys()
    assert all(received[message] > sent[message] for message in sent)
    for device in range(len(program.devices)):
        spans = [span for span in timeline.spans if span.device == device]
        assert all(a.stop_s <= b.start_s + 1e-12 for a, b in pairwise(spans))
        assert timeline.busy_s(device, "compute") <= timeline.total_s
    assert predictor.timeline(program) == timeline
    faster = Predictor(Cluster(cluster.nodes, Network(Link(1e12, 1e-9))))
    assert faster.timeline(program).total_s <= timeline.total_s

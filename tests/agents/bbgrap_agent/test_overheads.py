from bbgrap_agent.overheads import message_samples, segment_samples
from bbgrap_agent.speed_fitting import fit

from bbgrap.transport.certificates import Authority


def test_segments_and_messages_of_several_sizes_take_time():
    identity = Authority.make().identity("agent")
    for kind, samples in (
        ("segment", segment_samples(1, 0.0)),
        ("message", message_samples(0.0)),
        ("message", message_samples(0.0, identity)),
    ):
        assert len({sample.work.map_bytes for sample in samples}) >= 5
        assert all(sample.seconds > 0 and sample.work.kind == kind for sample in samples)
        assert fit(kind, samples).kind == kind

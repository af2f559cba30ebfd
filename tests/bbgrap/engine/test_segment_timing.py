"""Segments timed one by one: each once per content, every one of every device."""

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.engine import segment_timing
from bbgrap.engine.prepare import plan_graph
from bbgrap.planners.options import PlanOptions
from bbgrap.runtime.schedule import LocalRun
from bbgrap.zoo import build


def test_every_segment_has_a_time_and_the_clock_uses_it(monkeypatch) -> None:
    loaded = []
    load = segment_timing.load_segment
    monkeypatch.setattr(
        segment_timing, "load_segment", lambda model, *rest, **more: loaded.append(model.digest) or load(model, *rest, **more)
    )
    forecast = plan_graph(build("tiny"), Cluster.even(3), PlanOptions())
    artifacts = export(forecast.compiled.optimized)
    times = segment_timing.measured_segments(artifacts)
    for device, known in zip(artifacts.devices, times, strict=True):
        assert known.keys() == {step.segment for step in device.schedule.steps if isinstance(step, LocalRun)}
        assert all(seconds > 0 for seconds in known.values())
    assert len(loaded) == len(set(loaded)) == len({model.digest for device in artifacts.devices for model in device.segments})
    timeline = forecast.predictor.timeline(forecast.compiled.optimized, times)
    for device, known in enumerate(times):
        spans = {span.segment: span.stop_s - span.start_s for span in timeline.spans if span.device == device and span.segment is not None}
        assert spans.keys() == known.keys()
        assert all(abs(spans[number] - seconds) < 1e-9 for number, seconds in known.items())

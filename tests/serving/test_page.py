"""The page without a browser: its files and policy, what it is told, the pictures of plans, metrics and spans."""

import json
import re
import shutil
import signal
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from html.parser import HTMLParser
from importlib import resources
from types import SimpleNamespace

import numpy as np
import pytest

from bbgrap.observing.rates import rates_between
from bbgrap.protocol.status_messages import PlanShown
from bbgrap.serving.model import Durations, Statistics
from bbgrap.serving.status_poller import _event, _points, drawn
from bbgrap.serving.tracing import Tracing
from bbgrap.serving.triton_metrics import triton_metrics
from tests.bbgrap.observing.receiver import receiver
from tests.bbgrap.observing.statuses import MODEL, STATUS
from tests.serving.clients import binary_body
from tests.serving.conftest import serving
from tests.serving.pages import Page
from tests.waiting import until

X = {"x": np.full((2, 4), 0.5, np.float32)}
HOSTILE = "</text><script>alert(1)</script>\n\ndata: \u2028'\"&"


class Loads(HTMLParser):
    """What a page loads, and what it has inline."""

    def __init__(self) -> None:
        super().__init__()
        self.paths, self.inline, self._in = set(), [], ""

    def handle_starttag(self, tag, attrs):
        self._in = tag if tag in ("script", "style") else ""
        for name, value in attrs:
            if name == "src" or (tag == "link" and name == "href"):
                self.paths.add(value)
            if name == "style" or name.startswith("on"):
                self.inline.append((tag, name))

    def handle_data(self, data):
        if self._in and data.strip():
            self.inline.append((self._in, data))


@pytest.mark.cluster
def test_the_page_loads_its_own_files_and_its_policy_allows_nothing_else(http):
    status, page = http.ask("GET", "/")
    policy = http.headers["content-security-policy"]
    assert (status, http.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    loads = Loads()
    loads.feed(page.decode())
    assert loads.inline == []
    assert {"/page/page.js", "/page/page.css"} <= loads.paths
    files = {entry.name for entry in (resources.files("bbgrap.serving") / "page").iterdir()} - {"index.html"}
    assert {path.rpartition("/")[2] for path in loads.paths} <= files
    for name in files:
        status, content = http.ask("GET", f"/page/{name}")
        assert (status, http.headers["content-security-policy"]) == (200, policy), name
        imported = re.findall(rb"(?:from|import)\s+'([^']*)'|url\(([^)]*)\)", content)
        assert all(one.removeprefix(b"./").decode() in files for one, _ in imported), name
        assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", content), name
    assert http.ask("GET", "/page/..%2fhttp.py")[0] == 404
    assert http.ask("POST", "/")[0] == 405
    assert (http.ask("HEAD", "/live"), http.headers["content-type"]) == ((200, b""), "text/event-stream")
    assert http.ask("GET", "/page/page.js")[0] == 200  # the same connection goes on


@pytest.mark.cluster
def test_an_open_page_is_told_the_status_and_its_changes(served, cluster, http):
    http.run("rows", X)
    with Page(served.url) as page:
        assert page.answer.headers["content-type"] == "text/event-stream"
        told, status = page.next("status"), cluster.connection.status()
        assert told.keys() == {"uptime_s", "rates", "latest", *asdict(status)}
        assert [node["name"] for node in told["nodes"]] == [node.name for node in status.nodes]
        assert told["links"] == [asdict(link) for link in status.links]
        assert told["events"] == []
        happened = [event["number"] for event in page.next("happened")]
        assert happened == [event.number for event in status.events if event.number <= happened[-1]]  # more may happen meanwhile
        before = done(told)
        for _ in range(5):
            http.run("rows", X)
        later = page.until("status", lambda told: done(told) >= before + 5)
        with Page(served.url) as other:
            assert len(other.next("history")) >= 1
            assert done(other.next("status")) >= done(later)

        def every_plan_shows_who_serves():  # the standby has no pictures; it serves where other tests have loaded all that nodes may have
            plans = [plan for model in page.next("status")["models"] for plan in model["plans"] if model["name"] == "rows"]
            answers = [http.json("GET", f"/live/plans/{plan['plan']}") for plan in plans]
            assert {status for status, _ in answers} == {200}
            return [shown["agents"] for _, shown in answers] == [plan["nodes"] if plan["serves"] == "plan" else [] for plan in plans]

        until(every_plan_shows_who_serves)
    for wrong in ("nix", "0" * 64, "%2e%2e"):
        status, said = http.ask("GET", f"/live/plans/{wrong}")
        assert (status, said != b"") == (404, True)


def done(told):
    return next((model["requests"]["done"] for model in told["models"] if model["name"] == "rows"), 0)


@pytest.mark.cluster
def test_metrics_are_the_clusters(http, cluster):
    http.run("rows", X)
    done = next(model.requests["done"] for model in cluster.connection.status().models if model.name == "rows")

    def counted():
        status, text = http.ask("GET", "/metrics")
        assert (status, http.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b'bbgrap_node_up{node="agent0"} 1.0' in text
        found = re.search(rb'bbgrap_requests_total\{digest="\w+",model="rows",outcome="done"\} ([\d.]+)', text)
        return found is not None and float(found[1]) >= done

    until(counted)  # what is told may be a second old


@pytest.mark.cluster
def test_models_are_called_as_they_are_served(cluster, models, tmp_path):
    """Whatever their files are called, and also where two are one file."""
    file, folder = models / "triton" / "1" / "model.onnx", tmp_path / "models"
    folder.mkdir()
    shutil.copytree(models / "triton", folder / "detector")
    with serving(cluster.address, folder, tmp_path / "log", f"one={file}", f"two={file}") as server, server.http() as http:
        names = {"one", "two", "detector"}
        for name in names:
            http.run(name, X)
        with Page(server.url) as page:
            assert {model["name"] for model in page.next("status")["models"]} >= names
        counted = re.findall(
            r'bbgrap_requests_total\{digest="\w+",model="(\w+)",outcome="done"\} 1.0', http.ask("GET", "/metrics")[1].decode()
        )
        assert set(counted) >= names


def test_the_history_is_of_the_models_that_a_page_shows():
    """It had all: of a thousand models 46 MB, and 27 MB were told to each page that was opened."""
    busy = {number: {**MODEL.requests, "done": number} for number in range(1000)}
    models = tuple(replace(MODEL, model=f"{number:064}", requests=requests) for number, requests in busy.items())
    status = replace(STATUS, models=models)
    points = _points(status, rates_between(None, status))
    assert {int(point[0]) for point in points} == set(range(1000 - 64, 1000))


def test_triton_s_names_tell_what_is_counted_here_and_who_waits_there():
    served = SimpleNamespace(name=MODEL.name, version="3", statistics=Statistics())
    served.statistics.succeeded(5_000_000, Durations(1_000_000, 20_000, 3_000_000, 4_000))
    found = {family.name.removeprefix("nv_inference_"): family.samples for family in triton_metrics([served], STATUS)}
    assert {sample.labels["version"] for samples in found.values() for sample in samples} == {"3"}
    values = {name: samples[0].value for name, samples in found.items()}
    assert values.pop("pending_request_count") == MODEL.waiting > 0
    assert values.pop("request_success") == values.pop("count") == 1
    assert values.pop("request_failure") == values.pop("exec_count") == 0
    parts = {"queue": 1000, "compute_input": 20, "compute_infer": 3000, "compute_output": 4, "request": 5000}
    assert values == {f"{name}_duration_us": value for name, value in parts.items()}


@pytest.mark.cluster
@pytest.mark.faults
def test_requests_are_recorded_while_a_page_is_open_and_failures_stay_failures(cluster, models, tmp_path):
    trace, options = "ab" * 16, ("--record-every", "0", "--log-format", "json", "--otlp")
    with receiver() as received, serving(cluster.address, models, tmp_path / "log", *options, received.endpoint) as server:
        with server.http() as http, Page(server.url) as page:
            http.run("triton", X)
            key = plan_of(page.until("status", lambda told: plan_of(told, "triton") is not None), "triton")["plan"]
            before = http.json("GET", f"/live/plans/{key}")[1]["recorded_at"]
            body, headers = binary_body(X)
            assert http.ask("POST", "/v2/models/triton/infer", body, {**headers, "traceparent": f"00-{trace}-{'cd' * 8}-01"})[0] == 200
            body, headers = binary_body({"x": np.full((2, 4), 1.5, np.float32)})
            assert http.ask("POST", "/v2/models/triton/infer", body, headers)[0] == 500
            y = http.run("triton", X)["y"]
            np.testing.assert_array_equal(http.run("triton", X)["y"], y)
            # The plan may begin to serve only now, where the standby did.
            until(lambda: http.run("triton", X) and http.json("GET", f"/live/plans/{key}")[1]["recorded_at"] > before)
            plan = http.json("GET", f"/live/plans/{key}")[1]
            assert plan["measured_s"] > 0
            assert ET.fromstring(plan["measured_svg"]).tag.endswith("svg")  # noqa: S314 - our own output
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(20) == 0, "a page that is open does not keep the server from ending"
        names = {span.name for span in received.spans if span.trace_id.hex() == trace}
        assert names == {"infer triton", "node agent0", "node coordinator"}


def plan_of(told, name):
    """Return the plan for the shape of `X`."""
    plans = (plan for model in told["models"] for plan in model["plans"] if model["name"] == name)
    return next((plan for plan in plans if plan["shapes"] == {"x": [2, 4]}), None)


def test_nothing_is_recorded_while_nobody_looks():
    tracing = Tracing(every_s=1000)
    assert not tracing.is_due("a")
    tracing.watchers = 1
    assert [tracing.is_due(name) for name in ("a", "a", "b")] == [True, False, True]


def test_of_models_that_are_gone_it_is_forgotten_when_they_were_recorded():
    tracing = Tracing(every_s=0.0)
    tracing.watchers = 1
    assert all(tracing.is_due(f"version-{number}") for number in range(99))
    assert list(tracing._latest) == ["version-98"]


def test_hostile_names_are_text_and_nothing_else():
    layer = {"name": HOSTILE, "operator": "Conv", "axis": "rows", "extent": 4}
    fetch = {"value": HOSTILE, "axis": "rows", "extent": 4, "ranges": [[0, 1]], "elements": 1}
    tiles = [{"device": 0, "computes": [[0, 2]], "fetches": [fetch]}, {"device": 1, "computes": [[2, 4]], "fetches": []}]
    spans = {"devices": [HOSTILE, "b", "coordinator"], "spans": [[0, "compute", HOSTILE, 0, 10, None, None, 0, 0]]}
    report = json.dumps({"agents": [HOSTILE, "b"], "layers": [{**layer, "tiles": tiles}], "predicted_timeline": spans})
    shown = drawn(PlanShown(1, report, (HOSTILE, "b", "coordinator"), (), 0.0))
    for picture in (shown["layers_svg"], shown["predicted_svg"]):
        tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(picture).iter()}  # noqa: S314 - our own output
        assert tags <= {"svg", "g", "rect", "text", "title", "line", "path"}
        assert "style=" not in picture
    assert _event("status", {"name": HOSTILE}).count(b"\n") == 3

"""The dashboard, the alerts and the metrics, judged by Prometheus itself (Debian's package `prometheus`)."""

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import bbgrap
from bbgrap.observing.metrics import CONTENT_TYPE, exposition
from bbgrap.serving.model import Statistics
from bbgrap.serving.triton_metrics import triton_metrics
from tests.bbgrap.observing.statuses import STATUS
from tests.waiting import until

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no Prometheus: apt-get install prometheus"),
]

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "bbgrap.rules.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "bbgrap.json").read_text())
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
ALERTS = [(rule["alert"], rule["expr"]) for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_promtool_accepts_the_metrics():
    """But for the units in Triton's names, which are Triton's."""
    lints = subprocess.run(["promtool", "check", "metrics"], input=exposition(STATUS), capture_output=True, text=True)
    assert (lints.returncode, lints.stdout, lints.stderr) == (0, "", "")
    served = SimpleNamespace(name="resnet50", version="1", statistics=Statistics())
    text = exposition(STATUS, triton_metrics([served], STATUS))
    lints = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert lints.stderr
    assert all(line.startswith("nv_inference_") and line.endswith("abbreviated units") for line in lints.stderr.splitlines())


def test_each_alert_fires_when_it_should_and_only_there(tmp_path):
    checks = (Path(__file__).parent / "rules.test.yml").read_text().replace("RULES", str(RULES))
    (tmp_path / "checks.yml").write_text(checks)
    checked = subprocess.run(["promtool", "test", "rules", tmp_path / "checks.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert all(alert in checks for alert, _ in ALERTS)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """The address of a Prometheus, with the configuration that is shipped, that scrapes a cluster at work."""
    folder = tmp_path_factory.mktemp("prometheus")
    with bbgrap.LocalCluster(agents=2) as cluster:

        class Metrics(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exposition(cluster.connection.status()).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
        config = config.replace("HEAD:8000", f"127.0.0.1:{server.server_address[1]}").replace("5s", "1s")
        (folder / "prometheus.yml").write_text(config)
        shutil.copy(RULES, folder)
        address = f"127.0.0.1:{free_port()}"
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"],
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        try:
            work(cluster, address)
            yield address
        finally:
            process.terminate()
            process.wait(30)
            server.shutdown()
            server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def work(cluster, address) -> None:
    """Run requests until Prometheus has seen some more than once."""
    cluster.connection.measure_unknown()
    session = bbgrap.InferenceSession("zoo:tiny", cluster=cluster, planner="bbgrap")
    feed = {"input": np.zeros((1, 3, 32, 32), np.float32)}
    session.run(None, feed)
    session.trace(feed, 1)
    seen = 'min(count_over_time(bbgrap_exchange_bytes_total[1m])) > 3 and sum(rate(bbgrap_requests_total{outcome="done"}[10s])) > 0'
    until(lambda: session.run(None, feed) and query(address, seen))


def query(address, expression):
    """Return the series that an expression comes to."""
    question = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{question}", timeout=10) as answer:
            found = json.load(answer)
    except ConnectionError:
        return []
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{expression}: {error.read().decode()}") from None
    except urllib.error.URLError:
        return []  # it is not up yet
    assert (found["status"], found.get("warnings")) == ("success", None), (expression, found)
    return found["data"]["result"]


@pytest.mark.parametrize(("title", "expression"), PANELS)
def test_every_expression_of_the_dashboard_has_data(prometheus, title, expression):
    concrete = expression.replace("$__rate_interval", "30s").replace("$model", ".*")
    assert "$" not in concrete
    found = query(prometheus, concrete)
    assert found or title in {"Links that are down", "Failing per second"}


@pytest.mark.parametrize(("alert", "expression"), ALERTS)
def test_every_alert_evaluates(prometheus, alert, expression):
    query(prometheus, expression)


def test_prometheus_loads_the_alerts_and_reaches_the_endpoint(prometheus):
    with urllib.request.urlopen(f"http://{prometheus}/api/v1/rules", timeout=10) as answer:
        rules = [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {alert for alert, _ in ALERTS}
    assert all(rule["health"] in {"ok", "unknown"} for rule in rules)
    assert [entry["value"][1] for entry in query(prometheus, 'up{job="bbgrap"}')] == ["1"]
    assert {entry["metric"]["node"] for entry in query(prometheus, "bbgrap_node_up == 1")} == {"agent0", "agent1"}

"""The page of `bbgrap serve` in a real browser (Debian's `chromium`), while a real cluster works.

PICTURES=docs/pictures makes new pictures for the documentation.
"""

import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from PIL import Image

import bbgrap
from bbgrap.report.svg import milliseconds
from bbgrap.report.trace import timeline_of
from bbgrap.zoo import materialize
from tests.serving.clients import binary_body
from tests.waiting import until

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no browser: apt-get install chromium fonts-dejavu-core"),
]

QUIET = ("quic", "background-networking", "component-update", "sync", "gpu")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in QUIET)]
PROGRAM = [sys.executable, "-c", "from bbgrap.cli.main import run; run()"]
HOSTILE = "<img src=x onerror=window.hurt=1>"
SEEN_S = 2.0
WITHIN_MS = 30_000
COLOURS = 128
TINY = (1, 3, 32, 32)


class Served:
    """A cluster, a server on it, and somebody who uses it."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.working, self.failures = threading.Event(), []
        self.start()

    def start(self):
        models = self.folder / "models"
        models.mkdir(exist_ok=True)
        words = ["serve", "zoo:resnet50", "--models", str(models), "--http", urlsplit(self.url).netloc, "--planner", "bbgrap"]
        log = (self.folder / "log").open("ab")
        words += ["--record-every", "1", "--coordinator", self.cluster.address]
        self.process = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        if self.process.stdout.readline().strip() != self.url:
            self.kill()
            raise AssertionError((self.folder / "log").read_text())

    def ask(self, model, shape, again=lambda: False):
        """Send a request to a model, and more, one after the other, as long as `again`."""
        body, headers = binary_body({"input": np.zeros(shape, np.float32)})
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)) as connection:
            while True:
                connection.request("POST", f"/v2/models/{quote(model)}/infer", body, headers)
                answer = connection.getresponse()
                content = answer.read()
                if answer.status != 200:
                    self.failures.append(content)
                if not again():
                    return

    def work(self):
        """Send one request after the other, as long as `working` is set."""
        self.ask("resnet50", (1, 3, 224, 224), self.working.is_set)

    def status(self):
        told = subprocess.run([*PROGRAM, "status", "--json", "--coordinator", self.cluster.address], capture_output=True, check=True)
        return json.loads(told.stdout)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            assert self.process.wait(40) == 0
        finally:
            self.kill()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with bbgrap.LocalCluster(agents=2) as cluster:
        cluster.connection.measure_unknown()
        made = Served(cluster, tmp_path_factory.mktemp("served"))
        try:
            made.work()  # planners other than auto make a plan when it is asked for, and the page shows plans
            assert made.failures == []
            yield made
        finally:
            made.end()


@pytest.fixture
def page(served):
    """A page; whatever goes wrong in it, or goes elsewhere, fails the test."""
    wrong = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1320, "height": 900}, color_scheme="light")
        page.set_default_timeout(WITHIN_MS)
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(f"{served.url}/") else wrong.append(asked.url))
        page.wrong = wrong
        page.goto(served.url)
        page.wait_for_selector("#state.good")
        yield page
        browser.close()
    assert wrong == []


@pytest.fixture
def at_work(served):
    served.working.set()
    thread = threading.Thread(target=served.work)
    thread.start()
    yield
    served.working.clear()
    thread.join()


def figures(page, selector):
    """Return the figures of the first row, card or cell that fits, as they are told, and its text."""
    found = page.locator(selector).first
    return [float(value) for value in found.locator("data").evaluate_all("all => all.map(one => one.value)")], found.inner_text()


def picture(page, name):
    """Keep what the page shows, in the colours that it has most of: backgrounds stay what they are."""
    if folder := os.environ.get("PICTURES"):
        image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        most = sorted(image.getcolors(image.width * image.height), reverse=True)[:COLOURS]
        palette = Image.new("P", (1, 1))
        palette.putpalette([part for _, colour in most for part in colour])
        image = image.quantize(palette=palette, dither=Image.Dither.NONE)
        Path(folder).mkdir(parents=True, exist_ok=True)
        image.save(Path(folder) / f"page-{name}.png", optimize=True)


def test_every_panel_shows_what_status_says(served, page):
    served.working.set()
    thread = threading.Thread(target=served.work)
    thread.start()
    try:
        until(lambda: any(plan["serves"] == "plan" for model in served.status()["models"] for plan in model["plans"]))
        page.wait_for_selector("#measured svg .span")
        page.wait_for_selector("#predicted svg .span")
        page.wait_for_selector("#segments data")
        until(lambda: page.locator("#chart-time path").first.get_attribute("d").count("L") > 15)
        page.wait_for_selector("#recorded >> text=recorded")
        picture(page, "light")
    finally:
        served.working.clear()
        thread.join()
    assert served.failures == []
    time.sleep(2 * 1.0)  # a look later nothing moves any more
    status = served.status()
    model = next(model for model in status["models"] if model["name"].startswith("resnet50"))
    plan = next(plan for plan in model["plans"] if plan["segments"])
    card, _ = figures(page, f"[data-model='{model['model']}']")
    assert card[1:] == [model["waiting"], model["running"], *(model["requests"][how] for how in ("done", "failed", "cancelled", "refused"))]
    for node in status["nodes"]:
        told, text = figures(page, f"[data-node={json.dumps(node['name'])}]")
        assert node["state"] in text
        if node["state"] != "alive":  # of another test; what it had says nothing about what it has
            assert told == []
            continue
        assert (told[3], told[4], told[5]) == (node["memory_bytes"], node["running"], node["cores"])
        assert 0 <= told[0] <= 1
        assert told[1] == pytest.approx(node["used_bytes"], rel=0.2)
        assert all(word in text for word in (node["version"], node["onnxruntime"], "GiB", "%"))
    assert len(status["links"]) >= 4
    for link in status["links"]:
        told, text = figures(page, f"[data-link='{link['source']} {link['destination']}']")
        assert told == [link["bandwidth_bytes_per_s"], link["round_trip_s"]]
        assert "bit/s" in text
    told, text = figures(page, f"[data-plan='{plan['plan']}']")
    times = [seconds for seconds in (plan["measured_s"], plan["predicted_s"]) if seconds]
    assert told == [*times, plan["requests"], plan["waiting"], plan["running"]]
    assert plan["why"] in text
    for segment in plan["segments"]:
        told, _ = figures(page, f"[data-segment='{segment['node']} {segment['segment']}']")
        assert told == [value for value in (segment["measured_s"], segment["predicted_s"]) if value]
    sent = {f"{entry['source']} {entry['destination']}": entry["bytes"] for entry in status["exchanges"]}
    shown = page.locator("#traffic data").evaluate_all("all => all.map(one => [one.dataset.pair, +one.value])")
    assert dict(shown) == sent
    assert sent
    numbers = page.locator("#events tr[data-event]").evaluate_all("all => all.map(one => +one.dataset.event)")
    assert numbers == [event["number"] for event in reversed(status["events"])][:100]
    shown = served.cluster.connection.shown_plan(plan["plan"])
    report = json.loads(shown.report)
    tips = set(page.locator("#layers svg .tile[data-tip]").evaluate_all("all => all.map(one => one.dataset.tip)"))
    first = report["layers"][0]
    for tile in first["tiles"]:
        (start, stop) = tile["computes"][0]
        part = "all" if first["axis"] == "whole" else f"{first['axis']} {start}:{stop}"
        said = f"{report['agents'][tile['device']]} computes {part} of {first['name']} ({first['operator']})"
        assert said in tips
    assert len(report["nodes_used"]) == 1 or sum("fetches" in tip for tip in tips) > 10
    took = timeline_of(shown.records, shown.devices).total_s
    page.wait_for_selector(f"#measured svg[aria-label='measured: {milliseconds(took)}']")


def test_the_plan_shown_is_the_most_used_until_somebody_chooses(page):
    """A plan that was asked before, and first in the list, does not hide the one at work; plans used alike do not take turns."""
    page.wait_for_selector("#layers svg")
    chosen = page.evaluate(
        """async () => {
          const {choose} = await import('/page/plans.js'), list = document.getElementById('plan');
          list.replaceChildren();
          list.shown = '';
          const model = (name, requests) => ({name, plans: [{plan: name, requests, shapes: {}, planner: 'auto'}]});
          const choice = (...models) => choose({models})?.plan;
          const found = [
            choice(), choice(model('a', 1)), choice(model('a', 1), model('b', 100)), choice(model('a', 150), model('b', 101)),
            choice(model('a', 203), model('b', 101)), choice(model('b', 101)),
          ];
          list.dispatchEvent(new Event('change', {bubbles: true})); // somebody chose
          choice(model('a', 1000), model('b', 101));
          list.value = 'b';
          return [...found, choice(model('a', 2000), model('b', 101)), choice(model('a', 2000), model('c', 3000))];
        }"""
    )
    assert chosen == [None, "a", "b", "b", "a", "b", "b", "c"]


def test_a_plan_whose_pictures_do_not_come_says_why(page):
    page.route("**/live/plans/*", lambda asked: asked.fulfill(status=404, body="there is no such plan"))
    page.reload()
    page.wait_for_selector("#recorded >> text=no pictures: there is no such plan")
    page.unroute("**/live/plans/*")
    page.wait_for_selector("#layers svg")
    assert "no pictures" not in page.locator("#recorded").inner_text()
    page.wrong[:] = [said for said in page.wrong if "404" not in said]  # the browser's own lines


@pytest.mark.usefixtures("at_work")
def test_an_agent_that_dies_and_one_that_is_back_are_seen_within_two_seconds(served, page):
    page.wait_for_selector("[data-node=agent1] .state.alive")
    began = time.monotonic()
    served.cluster.kill("agent1")
    page.wait_for_selector("[data-node=agent1] .state.gone")
    assert time.monotonic() - began < SEEN_S
    assert "agent1 is away" in page.locator("#plans").inner_text() or page.wait_for_selector("#plans >> text=agent1 is away")
    page.wait_for_selector("#events >> text=agent 'agent1' was lost")
    served.cluster.add_agent("agent1")
    until(lambda: sum(node.state == "alive" for node in served.cluster.connection.nodes()) == 2)
    began = time.monotonic()
    page.wait_for_selector("[data-node=agent1] .state.alive")
    assert time.monotonic() - began < SEEN_S
    assert served.failures == []


def test_a_phone_scrolls_down_only_and_dark_is_dark(served, page):
    page.wait_for_selector("#layers svg")
    page.select_option("#theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(228, 232, 237)"
    picture(page, "dark")
    page.set_viewport_size({"width": 360, "height": 780})
    page.reload()
    page.wait_for_selector("#layers svg")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(228, 232, 237)", "the choice is kept"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    picture(page, "phone")
    page.select_option("#theme", "")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(228, 232, 237)"


def test_keyboards_and_screen_readers_find_their_way(served, page):
    page.wait_for_selector("#layers svg")
    assert page.locator("svg:not([role=img][aria-label])").count() == 0
    assert page.locator("thead th:not([scope=col]), tbody th:not([scope=row])").count() == 0
    assert page.evaluate(
        "[...document.querySelectorAll('section')].every(one => document.getElementById(one.getAttribute('aria-labelledby')))"
    )
    reached = set()
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"))
    assert {"theme", "plan", "Nodes", "Plans", "Measured timeline", "Tiles per layer", "Segments", "Events"} <= reached


def test_hostile_names_are_shown_as_they_are(served, page):
    shutil.copy(materialize("tiny"), served.folder / "models" / f"{HOSTILE}.onnx")
    with closing(http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=60)) as connection:
        connection.request("POST", f"/v2/repository/models/{quote(HOSTILE)}/load", b"{}")
        assert connection.getresponse().status == 200
    served.ask(HOSTILE, TINY)
    assert served.failures == []
    served.cluster.add_agent(HOSTILE)
    try:
        page.wait_for_function("name => document.querySelector('#models').innerText.includes(name)", arg=HOSTILE)
        page.wait_for_function("name => document.querySelector('#nodes').innerText.includes(name)", arg=HOSTILE)
        assert page.locator("main img").count() == 0
        assert page.evaluate("window.hurt") is None
    finally:
        served.cluster.kill(HOSTILE)
    page.wait_for_function("name => document.querySelector('#map').textContent.includes('lost')", arg=HOSTILE)


def test_a_page_that_loses_its_coordinator_or_server_says_so_and_goes_on(served, page):
    served.cluster.kill("coordinator")
    page.wait_for_selector("#state >> text=no coordinator")
    assert "is away" in page.locator("#trouble").inner_text()
    served.cluster.start_coordinator(int(served.cluster.address.rpartition(":")[2]))
    page.wait_for_selector("#state >> text=live")
    served.kill()
    page.wait_for_selector("#state >> text=no server")
    served.start()
    page.wait_for_selector("#state >> text=live")
    assert page.locator("#trouble").is_hidden()
    page.wrong[:] = [said for said in page.wrong if "ERR_" not in said]  # the browser's own lines of the connection that was lost

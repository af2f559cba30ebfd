"""Every tutorial is done from top to bottom, as a reader would: its files written, its commands run, its servers left running.

`make test-docs` runs it, with Triton's own client; it takes minutes. One machine stands for two: both laptops are this one, the second with
a home of its own, where only a token opens the cluster. Addresses are free ports. By default only the commands run (test_commands.py).
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docs.documents import Document, documents
from tests.serving.judges.test_judges import environment
from tests.waiting import until

TUTORIALS = {Path(document.name).stem: document for document in documents() if document.is_tutorial}

READY = {"bbgrap-coordinator": "coordinator at tcp://", "bbgrap-agent": "joined as", "bbgrap serve": "http://"}
"""What runs until it is stopped, and what it says when the next line may come."""

NOT_RUN = ("pip install",)
"""What is here already, or, as Triton's client, in an environment of its own."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `title` is the file that it is."""

    heading: str
    language: str
    title: str
    text: str


def blocks(document: Document) -> Iterator[Block]:
    heading = ""
    for match in re.finditer(r'^## ([^\n]+)$|^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', document.text, re.MULTILINE | re.DOTALL):
        heading = match[1] or heading
        if not match[1]:
            yield Block(heading, match[2], match[3] or "", match[4])


@dataclass
class Reader:
    """Who does what a tutorial says, in a folder of his own."""

    folder: Path
    home: dict[str, str]
    ports: dict[str, int] = field(default_factory=dict)
    started: list[subprocess.Popen] = field(default_factory=list)

    def here(self, text: str) -> str:
        """Have addresses be free ports of this machine."""

        def place(match: re.Match[str]) -> str:
            if match[0] not in self.ports:
                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    self.ports[match[0]] = free.getsockname()[1]
            return f"127.0.0.1:{self.ports[match[0]]}"

        text = re.sub(r"\b(?:192\.168\.1\.10|127\.0\.0\.1):\d+", place, text)
        if text.startswith("bbgrap serve") and "--http" not in text:
            text += f" --http {place(re.match('.*', '127.0.0.1:8000'))}"  # its default
        return text

    def do(self, line: str, *, elsewhere: bool) -> None:
        """Run a line, to its end or until its server is ready."""
        home = dict(self.home)
        if elsewhere:
            home["HOME"] = home["XDG_CONFIG_HOME"] = home["XDG_CACHE_HOME"] = str(self.folder / "elsewhere")
        while setting := re.match(r"(export )?([A-Z_]+)=(\S+) ?", line):
            value = self.token() if setting[3] == "..." else setting[3]
            (self.home if setting[1] else home)[setting[2]] = value
            line = line[setting.end() :]
        ready = next((said for command, said in READY.items() if line.startswith(command)), None)
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        with log.open("wb") as said:
            if ready is not None:
                self.started.append(subprocess.Popen(shlex.split(line), cwd=self.folder, env=home, stdout=said, stderr=said))
                until(lambda: ready in log.read_text() or self.started[-1].poll() is not None)
                assert ready in log.read_text(), log.read_text()
            elif line:
                done = subprocess.run(shlex.split(line), cwd=self.folder, env=home, stdout=said, stderr=said, timeout=600, check=False)
                expected = (0, 1) if line == "bbgrap doctor" else (0,)  # it may find something wrong with this machine
                assert done.returncode in expected, f"{line}\n{log.read_text()}"

    def token(self) -> str:
        """Return what the first laptop's coordinator prints on a terminal."""
        return (Path(self.home["XDG_CACHE_HOME"]) / "bbgrap" / "coordinator" / "keys" / "join.token").read_text().strip()

    def stop(self) -> None:
        for process in reversed(self.started):
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in (0, 130)


@pytest.fixture
def reader(folder, tmp_path) -> Iterator[Reader]:
    for name in ("model.onnx", "resnet50.onnx", "models", "image.npy"):
        (tmp_path / name).symlink_to(folder / name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BBGRAP_")}
    places = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "cache" / "bbgrap").mkdir(parents=True)
    (tmp_path / "cache" / "bbgrap" / "zoo").symlink_to(folder / "cache" / "bbgrap" / "zoo")
    one = Reader(tmp_path, {**kept, **places, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"})
    try:
        yield one
        one.stop()
    finally:
        for process in one.started:
            process.kill()
            process.wait()


@pytest.mark.docs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_can_be_done_from_top_to_bottom(tutorial, reader):
    for block in blocks(TUTORIALS[tutorial]):
        if block.title:
            (reader.folder / block.title).write_text(reader.here(block.text))
        elif block.language == "sh":
            for line in block.text.splitlines():
                if line.startswith(NOT_RUN):
                    continue
                if line == "python client.py":
                    line = f"{environment('triton', 'tritonclient[http,grpc]==2.73.0')}/bin/python client.py"
                reader.do(reader.here(line), elsewhere=block.heading == "On the second laptop")


@pytest.mark.docs
@pytest.mark.parametrize(("tutorial", "model"), [("read-a-plan", "zoo:resnet50"), ("too-big", "zoo:vgg16")])
def test_what_one_node_takes_alone_is_what_the_page_shows(tutorial, model, folder):
    """Default speeds are the same everywhere, and one node takes no search: these figures of a page can be compared."""
    words = ["bbgrap", "plan", model, "--agents", "2", "--planner", "bbgrap", "--explain"]
    surroundings = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    said = subprocess.run(words, cwd=folder, env=surroundings, capture_output=True, text=True, check=True).stdout
    (alone,) = re.findall(r"'node0' alone [\d.]+ ms", said)
    (whole,) = re.findall(r"whole, the model takes about [\d,]+ MiB", said)
    text = TUTORIALS[tutorial].text
    assert whole in text
    assert alone in text or "no node has room" in text


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_all_that_is_code_in_a_tutorial_is_run_or_a_file(tutorial):
    found = list(blocks(TUTORIALS[tutorial]))
    assert all(block.title or block.language in ("sh", "") for block in found)
    assert 2 * len(found) == TUTORIALS[tutorial].text.count("\n```")

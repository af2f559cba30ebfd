"""The audit log on a disk: one line per event, bounded, private, and nobody's reason to wait."""

import json
import logging
import stat
import threading
import time
from datetime import UTC, datetime

import pytest
from bbgrap_coordinator import audit
from bbgrap_coordinator.audit import MAX_LINE_BYTES, MAX_PER_MINUTE, AuditLog, line_of

from bbgrap.control.coordinator_instructions import Audit
from tests.waiting import until


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path, *audits, **options):
    log = AuditLog(path, **options)
    for told in audits:
        log.write(told)
    log.close()


def test_a_line_says_when_what_and_who(path):
    written(path, Audit("joined", {"agent": "left"}, {"address": "tcp://left:1"}), Audit("stopped", {}))
    written(path, Audit("started", {}))
    first, *others = lines(path)
    when = datetime.fromisoformat(first.pop("time"))
    assert abs((datetime.now(UTC) - when).total_seconds()) < 60
    assert first == {"event": "joined", "who": {"agent": "left"}, "address": "tcp://left:1"}
    assert [line["event"] for line in others] == ["stopped", "started"]


def test_only_the_owner_can_read_it(path):
    path.touch(0o644)
    written(path, Audit("started", {}), *[Audit("ran", {}, {"plan": "x" * 100})] * 20, max_bytes=1000)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("audit.jsonl*")}
    assert modes == {0o600}


def test_names_forge_no_line(path):
    name = 'm"\n{"time": "now", "event": "token created", "who": {}}\r\n\u2028\x00\ud800'
    written(path, Audit("brought", {"client": name}, {"names": [name]}))
    (line,) = lines(path)
    assert (line["event"], line["who"]["client"], line["names"]) == ("brought", name, [name])


def test_a_line_is_bounded_and_digests_stay(path):
    names = ["\u2028" * 5000] * 5000
    detail = {"model": "ab" * 32, "names": names, "deep": {"a": names, "b": dict.fromkeys(names, 1)}, "odd": float("nan")}
    written(path, Audit("brought", {"client": names[0]}, detail))
    (line,) = lines(path)
    assert len(path.read_bytes()) <= MAX_LINE_BYTES + 1
    assert (line["model"], line["odd"]) == ("ab" * 32, "nan")
    endless = {str(number): names for number in range(40)}
    assert json.loads(line_of("now", Audit("ran", {}, endless)))["cut"] is True


def test_old_files_go(path):
    written(path, *[Audit("ran", {}, {"number": number, "plan": "x" * 100}) for number in range(200)], max_bytes=1000)
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", *(f"audit.jsonl.{number}" for number in range(1, 6))]
    assert all(file.stat().st_size <= 1000 for file in files)
    kept = [line["number"] for file in (*reversed(files[1:]), files[0]) for line in lines(file)]
    assert kept == list(range(kept[0], 200))


def test_a_flood_of_one_event_leaves_room_for_the_others(path, monkeypatch):
    monkeypatch.setattr(audit.time, "monotonic", lambda: 0.0)
    flood = [Audit("refused", {"agent": str(number)}) for number in range(10 * MAX_PER_MINUTE)]
    written(path, *flood, Audit("joined", {"agent": "left"}))
    told = lines(path)
    assert sum(line["event"] == "refused" for line in told) == MAX_PER_MINUTE
    assert sum(line["event"] == "joined" for line in told) == 1
    omitted = [line["lines"]["refused"] for line in told if line["event"] == "omitted"]
    assert sum(omitted) == 9 * MAX_PER_MINUTE


def test_a_full_disk_is_told_once_and_what_comes_after_is_written(path, caplog):
    path.symlink_to("/dev/full")
    log = AuditLog(path)
    with caplog.at_level(logging.WARNING):
        for number in range(50):
            log.write(Audit("ran", {}, {"number": number}))
        until(lambda: log._queue.empty() and log._omitted["full disk"] == 50)
        path.unlink()
        log.write(Audit("joined", {"agent": "left"}))
        log.close()
    (warning,) = caplog.records
    assert "cannot be written" in warning.getMessage()
    assert "No space left" in warning.getMessage()
    omitted, joined = lines(path)
    assert (omitted["event"], omitted["lines"]) == ("omitted", {"full disk": 50})
    assert joined["who"] == {"agent": "left"}


def test_a_line_that_was_cut_off_spoils_no_other(path):
    path.write_text('{"time": "20')
    written(path, Audit("started", {}))
    cut, whole = path.read_text().splitlines()
    assert cut == '{"time": "20'
    assert json.loads(whole)["event"] == "started"


def test_whoever_tells_never_waits_for_the_disk(path, monkeypatch):
    stuck = threading.Event()
    log = AuditLog(path)
    put = log._handler.put
    monkeypatch.setattr(audit, "MAX_QUEUED", 5)
    monkeypatch.setattr(log._queue, "maxsize", 5)
    monkeypatch.setattr(log._handler, "put", lambda line: stuck.wait(60) and put(line))
    began = time.monotonic()
    for number in range(100):
        log.write(Audit("ran", {}, {"number": number}))
    assert time.monotonic() - began < 30
    stuck.set()
    log.close()
    told = lines(path)
    ran = [line["number"] for line in told if line["event"] == "ran"]
    assert ran == list(range(len(ran)))
    assert sum(line["lines"]["slow disk"] for line in told if line["event"] == "omitted") == 100 - len(ran)

"""Real coordinator processes, ended by SIGKILL and started again on the same state."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from bbgrap_coordinator.reserve import RESERVED_BYTES, Reserve

import bbgrap
from bbgrap.zoo import materialize
from tests.known_agents import known_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster

WAIT_S = 30


def command(state, *options):
    bind = ("--bind", "tcp://127.0.0.1:0", "--state-dir", str(state))
    return [sys.executable, "-m", "bbgrap_coordinator.main", *bind, "--until-eof", *options]


@contextmanager
def coordinator(state, *options):
    """Yield a process that listens, with its data port and incarnation; it is killed in the end."""
    process = subprocess.Popen(command(state, *options), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    told = []

    def read():
        told.extend(process.stderr)  # line by line, as they come

    reader = threading.Thread(target=read)
    reader.start()
    try:
        deadline = time.monotonic() + WAIT_S
        while not (found := re.search(r"data plane at tcp://127\.0\.0\.1:(\d+), incarnation (\d+)", "".join(told))):
            assert process.poll() is None, "".join(told)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process, int(found[1]), int(found[2])
    finally:
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        process.kill()
        process.wait()
        psutil.wait_procs(children, timeout=WAIT_S)
        reader.join()
        process.stdin.close()
        process.stderr.close()


@pytest.mark.faults
def test_the_incarnation_grows_and_the_data_port_stays(tmp_path):
    found = []
    for _ in range(3):
        with coordinator(tmp_path) as (_, port, incarnation):
            found.append((port, incarnation))
    (port, first), *later = found
    assert later == [(port, first + 1), (port, first + 2)]


@pytest.mark.faults
def test_a_data_port_that_is_taken_is_replaced_and_one_that_is_given_counts(tmp_path):
    with coordinator(tmp_path) as (_, port, _):
        pass
    with socket.create_server(("127.0.0.1", port)), coordinator(tmp_path) as (_, other, _):
        assert other != port
    with socket.create_server(("127.0.0.1", 0)) as free:
        given = free.getsockname()[1]
    with coordinator(tmp_path, "--data-port", str(given)) as (_, chosen, _):
        assert chosen == given


@pytest.mark.faults
def test_a_second_one_on_the_same_state_is_refused_in_one_line(tmp_path):
    with coordinator(tmp_path) as (_, _, incarnation):
        done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=WAIT_S, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert last.startswith(f"bbgrap-coordinator: state directory '{tmp_path}': another coordinator uses it")
        assert "Traceback" not in done.stderr
    with coordinator(tmp_path) as (_, _, next_one):
        assert next_one == incarnation + 1


@pytest.mark.faults
def test_a_damaged_database_does_not_keep_it_from_starting(tmp_path):
    with coordinator(tmp_path):
        pass
    (tmp_path / "state.db-wal").unlink()  # from it, SQLite would mend the rest
    (tmp_path / "state.db").write_bytes(b"noise" * 5000)
    with coordinator(tmp_path):
        assert (tmp_path / "state.db.damaged-1").read_bytes().startswith(b"noise")


@pytest.mark.faults
def test_it_starts_after_it_was_killed_at_any_time_of_its_start(tmp_path):
    """Most of a start is imports: the kills come in the time around its first files."""
    incarnations = []
    for number in range(3):
        process = subprocess.Popen(command(tmp_path), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + WAIT_S
        while not any("state.db" in file.path for file in psutil.Process(process.pid).open_files()):
            assert time.monotonic() < deadline
        time.sleep(number * 0.008)
        process.kill()
        process.wait()
        process.stdin.close()
        with coordinator(tmp_path) as (_, _, incarnation):
            incarnations.append(incarnation)
    assert all(later > earlier for earlier, later in pairwise(incarnations))


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a disk of its own needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a disk")
def test_it_starts_on_a_disk_that_others_have_filled_again_and_again(small_disk):
    """It was refused: 'its database cannot be used: database or disk is full'. Nothing was answered until somebody made room."""
    with coordinator(small_disk) as (_, port, first):
        until(lambda: (small_disk / "reserve").exists() and (small_disk / "reserve").stat().st_size >= RESERVED_BYTES)
    with (small_disk / "of others").open("wb", buffering=0) as others:
        for number in (1, 2, 3):
            for piece in (bytes(4096), b"."):
                with suppress(OSError):
                    while True:
                        others.write(piece)
            with coordinator(small_disk, "--ready-file", str(small_disk / "ready")) as (process, *found):
                assert found == [port, first + number]
                until((small_disk / "ready").exists)
                process.send_signal(signal.SIGTERM)
                assert process.wait(WAIT_S) == 0
            (small_disk / "ready").unlink()


def test_of_a_disk_with_little_room_no_more_is_held_than_before(tmp_path, monkeypatch):
    reserve = Reserve(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=RESERVED_BYTES))
    assert not reserve.hold()
    assert (tmp_path / "reserve").stat().st_size == 0
    (tmp_path / "reserve").write_bytes(bytes(8192))
    reserve.give_up()
    assert not (tmp_path / "reserve").exists()
    assert not reserve.hold()
    assert (tmp_path / "reserve").stat().st_size == 8192
    monkeypatch.undo()
    assert reserve.hold()
    assert (tmp_path / "reserve").stat().st_size == RESERVED_BYTES


@pytest.mark.faults
def test_a_session_goes_on_after_a_restart_and_folders_of_nobody_go(tmp_path):
    x = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)
    with known_cluster(2, tmp_path) as cluster:
        session = bbgrap.InferenceSession(str(materialize("tiny")), cluster=cluster.connection)
        session.prepare({"input": x.shape})
        (expected,) = session.run(None, {"input": x})
        made = {path.parent.name for path in cluster.logs.glob("state/plans/*/variants")}
        assert len(made) == 2, "a standby and a plan"
        time.sleep(1)  # what is written beside
        (cluster.logs / "state/plans/7").mkdir()
        cluster.kill("coordinator")
        cluster.start_coordinator()
        np.testing.assert_allclose(session.run(None, {"input": x})[0], expected, atol=1e-5)
        assert {path.name for path in cluster.logs.glob("state/plans/*")} == made, "nothing is planned again"

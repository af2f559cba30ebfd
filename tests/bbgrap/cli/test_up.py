"""`bbgrap up`: what it prints of hosts."""

from bbgrap.launching.launch import HostState, Launch


def test_a_process_is_shown_by_the_number_that_kill_takes(run, tmp_path, monkeypatch):
    file = tmp_path / "hosts.yaml"
    file.write_text("coordinator: {address: 'tcp://127.0.0.1:7070', ssh: none}\nhosts: [{name: left, ssh: none}]\n")
    states = [HostState("coordinator", "this machine", "runs", 1_234_567), HostState("left", "this machine", "stopped", 0)]
    monkeypatch.setattr(Launch, "status", lambda _: states)
    rows = [line.split() for line in run("up", file, "status").stdout.splitlines()[1:]]
    assert [row[-1] for row in rows] == ["1234567", "-"]

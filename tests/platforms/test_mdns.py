"""Three programs that were told no address find each other."""

import json
import os
import subprocess

import pytest

from tests.waiting import until

pytestmark = pytest.mark.platforms


def test_an_agent_and_a_client_find_the_coordinator_that_announces_itself(tmp_path):
    ready, token = tmp_path / "address", tmp_path / "state" / "keys" / "join.token"
    programs = []

    def start(*command):
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        programs.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE))

    try:
        place = ("--bind", "tcp://127.0.0.1:0", "--state-dir", str(tmp_path / "state"), "--ready-file", str(ready))
        start("bbgrap-coordinator", "--announce", "--until-eof", *place)
        until(ready.exists)
        start("bbgrap-agent", "--join", "mdns", "--name", "left", "--token-file", str(token), "--until-eof", "--data-port", "0")
        local = tmp_path / "state" / "keys" / "local.token"
        ask = ["bbgrap", "nodes", "--coordinator", "mdns", "--token-file", str(local), "--json"]
        found = []
        until(lambda: found.append(subprocess.run(ask, capture_output=True, text=True)) or '"left"' in found[-1].stdout)
        assert [node["name"] for node in json.loads(found[-1].stdout)] == ["left"]
    finally:
        for program in reversed(programs):
            program.terminate()
            program.communicate(timeout=30)

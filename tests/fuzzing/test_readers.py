"""Everything that reads bytes, with damaged inputs by seed: no other error, no crash, little time and memory.

Some hundred by default, some thousand in `make test-more`.
"""

import json
import subprocess
import sys
from random import Random

import pytest

from bbgrap.errors import RemoteProtocolError
from tests.fuzzing.readers.__main__ import READERS
from tests.fuzzing.readers.mutate import damaged, in_msgpack, in_protobuf
from tests.fuzzing.readers.reader import WEIGHED_EVERY, Reader, Tally, judge

INPUTS, MORE_INPUTS, SECONDS = 400, 2_000, 10.0
"""Of each reader: at most."""


@pytest.fixture(scope="module", params=[INPUTS, pytest.param(MORE_INPUTS, marks=pytest.mark.broad)])
def tallies(request, tmp_path_factory):
    """What happened to each reader, in one process: they are read from its file even if one ended it."""
    file = tmp_path_factory.mktemp("readers") / "tallies"
    options = [f"--inputs={request.param}", f"--seconds={SECONDS}", "--plain", "--child", str(file)]
    ended = subprocess.run([sys.executable, "-m", "tests.fuzzing.readers", *options], capture_output=True, text=True, check=False)
    found = [Tally(**json.loads(line)) for line in file.read_text().splitlines()]
    return {tally.reader: tally for tally in found}, ended.stderr[-2000:]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", READERS)
def test_reader(tallies, name):
    found, said = tallies
    assert name in found, said
    assert found[name].findings == {}
    assert found[name].weighed


def fails(read, **bounds):
    tally = Tally("victim")
    for _ in range(WEIGHED_EVERY):
        judge(Reader("victim", read, [], (RemoteProtocolError,), **bounds), b"x" * 100, tally)
    return [finding.split(" ", 1)[1] for finding in tally.findings]


def test_what_a_reader_may_not_do_is_found():
    def raises(data):
        raise KeyError(data)

    def refuses(data):
        raise RemoteProtocolError(str(len(data)))

    assert fails(len) == fails(refuses) == []
    assert fails(raises)[0].startswith("KeyError in")
    assert "bytes of memory for 100 bytes, allowed are 2600" in fails(lambda data: bytes(len(data) * 100), times=16, beside=1000)[0]


@pytest.mark.parametrize("name", ["codec to agents", "read_model", "stream"])
def test_damage_is_of_the_seed_and_most_keeps_the_form(name):
    reader = READERS[name]
    first, second = ([damaged(reader.seeds[0], Random(seed)) for seed in range(50)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 40
    if reader.mutate is not None:
        made = [reader.mutate(reader.seeds[0], Random(seed)) for seed in range(200)]
        assert made == [reader.mutate(reader.seeds[0], Random(seed)) for seed in range(200)]
        assert len(set(made)) > 20


def test_what_has_no_form_is_damaged_all_the_same():
    for mutate in (in_msgpack(), in_protobuf):
        assert mutate(b"\xc1\xff\xff", Random(1)) != b"\xc1\xff\xff"

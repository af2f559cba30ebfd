"""What a coordinator keeps over its end, at whatever step that comes."""

import errno
import fcntl
import os
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
from bbgrap_coordinator.artifacts import ArtifactFolders, write_artifacts
from bbgrap_coordinator.state_database import StateDatabase
from bbgrap_coordinator.storage import Storage

from bbgrap.cluster.types import NodeProfile
from bbgrap.control.coordinator_instructions import RemoveProfile, SaveModel, SavePlan, SaveProfile
from bbgrap.errors import UsageError
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.directions import TO_AGENT
from bbgrap.protocol.messages import Release
from tests.coordinator.crashing import DIGEST, FILE
from tests.coordinator.made import ARRAYS, plan, variant


@contextmanager
def opened(home, **bounds):
    """A coordinator's state in a folder, with what an earlier one has left."""
    folders = ArtifactFolders(home / "plans")
    storage = Storage(StateDatabase(home), folders, **bounds)
    try:
        yield storage, storage.read({DIGEST: 5}), folders
    finally:
        storage.close()


def save(storage, folders, job, **more):
    write_artifacts(folders.make(job), [variant(ARRAYS), variant([], "two")])
    storage.made(job)
    storage.carry_out(SavePlan(plan(job, **more)))
    storage.flush()


def test_a_profile_is_forgotten(tmp_path):
    with opened(tmp_path) as (storage, _, _):
        for by_hand in (False, True):
            storage.carry_out(SaveProfile(NodeProfile("a"), by_hand=by_hand))
        storage.carry_out(RemoveProfile("a", by_hand=True))
    with opened(tmp_path) as (_, after, _):
        assert (list(after.measured), list(after.given)) == (["a"], [])


def jobs_of(stored):
    return [saved.job for saved, _ in stored.plans]


def jobs_on_disk(home):
    return sorted(int(path.name) for path in (home / "plans").iterdir())


def incarnation_of(home):
    state = StateDatabase(home)
    state.close()
    return state.incarnation


def test_everything_is_there_again(tmp_path):
    with opened(tmp_path) as (storage, before, folders):
        assert (before.plans, before.models, before.measured, before.given, before.saw_agents) == ((), {}, {}, {}, False)
        save(storage, folders, 5)
        save(storage, folders, 3, standby=True)
        storage.carry_out(SavePlan(plan(5, quarantine="it ended two agents")))
        storage.carry_out(SaveModel(DIGEST, (FILE,)))
        storage.carry_out(SaveProfile(NodeProfile("a"), by_hand=False))
        storage.carry_out(SaveProfile(NodeProfile("b"), by_hand=True))
        storage.saw_agents()
    with opened(tmp_path) as (_, stored, _):
        assert [saved for saved, _ in stored.plans] == [plan(3, standby=True), plan(5, quarantine="it ended two agents")]
        assert all(variants == (variant(ARRAYS), variant([], "two")) for _, variants in stored.plans)
        assert stored.models == {DIGEST: (FILE,)}
        assert stored.measured == {"a": NodeProfile("a")}
        assert stored.given == {"b": NodeProfile("b")}
        assert stored.files == {DIGEST: 5}
        assert stored.saw_agents


def test_the_incarnation_grows_at_every_start(tmp_path):
    found = [incarnation_of(tmp_path) for _ in range(5)]
    assert found == list(range(found[0], found[0] + 5))
    assert found[0] > 0
    assert found[-1] << 32 < 2**63


@pytest.mark.parametrize("damaged", [-7, 1 << 40])
def test_an_incarnation_that_is_none_is_dropped(tmp_path, damaged, caplog):
    """Agents took no epoch of it, or none could be sent to them."""
    state = StateDatabase(tmp_path)
    state.set_number("incarnation", damaged)
    state.close()
    assert TO_AGENT.decode(TO_AGENT.encode(Release((incarnation_of(tmp_path) + 1 << 32) - 1)))
    assert f"incarnation {damaged} in the state directory is none" in caplog.text


def test_a_second_coordinator_is_refused(tmp_path):
    state = StateDatabase(tmp_path)
    with pytest.raises(UsageError, match="another coordinator uses it"):
        StateDatabase(tmp_path)
    state.close()
    assert incarnation_of(tmp_path) == state.incarnation + 1


def test_a_file_system_without_locks_is_not_taken_for_another_coordinator(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(UsageError, match="its file system takes no locks: No locks available; choose a directory on a disk"):
        StateDatabase(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        StateDatabase(tmp_path / "file" / "state")


def foreign(path):
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE songs (name TEXT)")
    database.close()


def newer(path):
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()


def torn(path):
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(len(content) - 100))


DAMAGES = {"noise": lambda path: path.write_bytes(b"no database" * 1000), "foreign": foreign, "newer": newer, "torn": torn}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_database_that_cannot_be_used_is_kept_aside(tmp_path, what, caplog):
    with opened(tmp_path) as (storage, _, folders):
        save(storage, folders, 1)
    DAMAGES[what](tmp_path / "state.db")
    for number in (1, 2):
        with opened(tmp_path) as (storage, stored, folders):
            assert stored.plans == ()
            assert (tmp_path / f"state.db.damaged-{number}").exists()
            assert "it is kept as" in caplog.text
            save(storage, folders, 2)
        with opened(tmp_path) as (_, stored, _):
            assert jobs_of(stored) == [2]
        DAMAGES[what](tmp_path / "state.db")


def test_a_row_that_cannot_be_read_costs_only_itself(tmp_path, caplog):
    with opened(tmp_path) as (storage, _, folders):
        save(storage, folders, 1)
        save(storage, folders, 2)
        storage.carry_out(SaveProfile(NodeProfile("a"), by_hand=True))
        storage.carry_out(SaveProfile(NodeProfile("b"), by_hand=True))
    database = sqlite3.connect(tmp_path / "state.db")
    database.execute("UPDATE plans SET content = x'93' WHERE job = 1")
    database.execute("UPDATE profiles SET content = 'text' WHERE node = 'a'")
    database.commit()
    database.close()
    with opened(tmp_path) as (_, stored, _):
        assert jobs_of(stored) == [2]
        assert list(stored.given) == ["b"]
        assert jobs_on_disk(tmp_path) == [2]
    assert "cannot be read and is dropped" in caplog.text


def test_models_whose_files_are_gone_are_forgotten(tmp_path):
    with opened(tmp_path) as (storage, _, _):
        storage.carry_out(SaveModel("1" * 64, (FILE,)))
        storage.carry_out(SaveModel("2" * 64, (FILE, type(FILE)("data", "3" * 64, 9))))
    with opened(tmp_path) as (_, stored, _):
        assert list(stored.models) == ["1" * 64]


def test_plans_without_their_artifacts_are_dropped(tmp_path, caplog):
    with opened(tmp_path) as (storage, _, folders):
        for job in (1, 2, 3):
            save(storage, folders, job)
        folders.remove(1)
        variants = folders.path(2) / "variants"
        variants.write_bytes(variants.read_bytes().replace(b"model", b"MODEL"))
    with opened(tmp_path) as (_, stored, _):
        assert jobs_of(stored) == [3]
        assert jobs_on_disk(tmp_path) == [3]
    assert "plan of job 1 is dropped" in caplog.text
    assert "plan of job 2 is dropped" in caplog.text


@pytest.mark.parametrize("odd", [{"place": 2}, {"nodes": ()}], ids=["no such variant", "a node less"])
def test_a_plan_that_is_not_what_its_job_made_is_dropped(tmp_path, odd, caplog):
    """One wrong number in the database, and no coordinator started on it."""
    with opened(tmp_path) as (storage, _, folders):
        for job in (1, 2):
            save(storage, folders, job)
        first, second = plan(1).variants
        storage.carry_out(SavePlan(replace(plan(1), variants=(first, replace(second, **odd)))))
    with opened(tmp_path) as (_, stored, _):
        assert jobs_of(stored) == jobs_on_disk(tmp_path) == [2]
    assert "plan of job 1 is dropped: its variants, or their nodes, are not those that its job made" in caplog.text


def test_what_was_made_and_not_saved_goes_at_the_next_start(tmp_path):
    with opened(tmp_path) as (storage, _, folders):
        write_artifacts(folders.make(1), [variant(ARRAYS)])
        storage.made(1)
    assert jobs_on_disk(tmp_path) == [1]
    with opened(tmp_path):
        assert jobs_on_disk(tmp_path) == []


def test_the_least_recently_saved_go_first_and_none_that_is_loaded(tmp_path):
    with opened(tmp_path, max_plans=3) as (storage, _, folders):
        for job in (1, 2, 3):
            save(storage, folders, job)
        storage.loaded(21)  # the second variant of job 2
        storage.carry_out(SavePlan(plan(1)))
        save(storage, folders, 4)
        storage.flush()
        assert jobs_on_disk(tmp_path) == [1, 2, 4]
        save(storage, folders, 5)
        assert jobs_on_disk(tmp_path) == [2, 4, 5]
        storage.released(21)
        save(storage, folders, 6)
        assert jobs_on_disk(tmp_path) == [4, 5, 6]
    with opened(tmp_path, max_plans=2) as (_, stored, _):
        assert jobs_of(stored) == [5, 6]


def test_what_agents_may_still_have_of_an_earlier_coordinator_does_not_go(tmp_path):
    """The model that was asked most was the least recently saved one: what was new took its place, and the next start found nothing."""
    with opened(tmp_path, max_plans=2) as (storage, _, folders):
        for job in (1, 2):
            save(storage, folders, job)
    with opened(tmp_path, max_plans=2) as (storage, stored, folders):
        assert jobs_of(stored) == [1, 2]
        save(storage, folders, 3)
        storage.flush()
        assert jobs_on_disk(tmp_path) == [1, 2, 3]
        for gone in stored.plans[0][0].variants:
            storage.released(gone.epoch)
        save(storage, folders, 4)
        storage.flush()
        assert jobs_on_disk(tmp_path) == [2, 4]


def test_bytes_are_bounded_too(tmp_path):
    with opened(tmp_path) as (storage, _, folders):
        save(storage, folders, 1)
        size = folders.nbytes(1)
    with opened(tmp_path, max_bytes=3 * size) as (storage, stored, folders):
        for gone in stored.plans[0][0].variants:
            storage.released(gone.epoch)
        for job in (2, 3, 4):
            save(storage, folders, job)
        assert jobs_on_disk(tmp_path) == [2, 3, 4]


def test_what_cannot_be_written_is_said_and_costs_nothing_else(tmp_path, caplog):
    with opened(tmp_path) as (storage, _, folders):
        storage.carry_out(SavePlan(plan(1)))
        storage.flush()
        assert "its artifacts are gone" in caplog.text
        storage._state._database.execute("DROP TABLE profiles")
        storage.carry_out(SaveProfile(NodeProfile("a"), by_hand=True))
        save(storage, folders, 2)
        assert f"state directory '{folders.directory.parent}': something is not kept" in caplog.text
        assert jobs_on_disk(tmp_path) == [2]


@pytest.fixture(scope="module")
def crashes(tmp_path_factory):
    home = tmp_path_factory.mktemp("crashes")
    done = subprocess.run(
        [sys.executable, "-m", "tests.coordinator.crashing", home], capture_output=True, text=True, timeout=100, check=True
    )
    count, status = map(int, done.stdout.split())
    assert status == 0, done.stderr
    return home, count


@pytest.mark.faults
def test_it_may_be_killed_at_any_step(crashes):
    home, count = crashes
    assert count > 80
    for limit in range(count + 1):
        said = [line.split(" ", 1) for line in (home / str(limit) / "said").read_text().splitlines()]
        told = {(kind, int(what)) for kind, what in said if kind != "noted"}
        state = home / str(limit) / "state"
        with opened(state) as (storage, stored, _):
            assert storage._state.incarnation > max((what for kind, what in told if kind == "incarnation"), default=0), limit
            assert jobs_on_disk(state) == sorted(jobs_of(stored)), limit
            for kind, job in told:
                if kind == "saved" and ("forgets", job) not in told:
                    assert job in jobs_of(stored), limit
                if kind == "forgot":
                    assert job not in jobs_of(stored), limit
            for saved, variants in stored.plans:
                assert saved in (plan(saved.job), plan(saved.job, quarantine="it ended two agents")), limit
                assert variants == (variant(ARRAYS),), limit
                assert all(digest_of(array) == digest for digest, array in variants[0].artifacts.weights.items()), limit
            if ["noted", "all"] in said:
                assert (stored.saw_agents, list(stored.models), list(stored.given)) == (True, [DIGEST], ["a"]), limit

"""What is found out about this machine, and faults that are really there."""

import errno
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from bbgrap.doctor import local_facts
from bbgrap.doctor.checks import check_here
from bbgrap.doctor.machine import card_speed, free_bytes, read_machine
from tests.bbgrap.doctor.test_cgroups import real_group, tree


def read(tmp_path, address="", **folders):
    chosen = {"cache": tmp_path, "state": tmp_path / "not" / "there" / "yet", "keys": tmp_path, **folders}
    return local_facts.read_here(address, **chosen)


def abouts(facts):
    return [f.about for f in check_here(facts)]


def test_this_machine(tmp_path):
    facts = read_machine(tmp_path, "localhost")
    assert (facts.cores, facts.memory_bytes) == (psutil.cpu_count(), psutil.virtual_memory().total)
    assert 0 < facts.free_memory_bytes <= facts.memory_bytes
    assert 0 <= facts.busy_cores <= facts.cores
    assert facts.own_cores < facts.cores + 1
    assert facts.free_disk_bytes == pytest.approx(psutil.disk_usage(str(tmp_path)).free, rel=0.1)
    assert card_speed("no.such.host.invalid") == card_speed("192.0.2.1") == 0.0


def test_what_is_installed_fits_and_folders_can_be_written(tmp_path):
    facts = read(tmp_path)
    assert {"onnxruntime", "numpy", "pyzmq"} <= {package.name for package in facts.packages}
    assert all(package.fits for package in facts.packages)
    assert not {"package", "Python"} & set(abouts(facts))
    assert not [folder for folder in facts.folders if folder.fault]
    assert not (tmp_path / "not").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    facts = read(tmp_path, state=tmp_path / "file" / "state")
    (finding,) = [f for f in check_here(facts) if f.about == "folder, state of a coordinator"]
    assert (finding.severity, "Not a directory" in finding.found, "--state-dir" in finding.advice) == ("error", True, True)


def test_a_port_that_is_taken_is_named(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(local_facts, "DEFAULT_PORT", listener.getsockname()[1])
        assert "port" in abouts(read(tmp_path))
    assert "port" not in abouts(read(tmp_path))


def test_a_coordinator_that_is_not_there_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert "port" not in abouts(read(tmp_path, address))
    assert "port" in abouts(read(tmp_path, address))
    assert "name" in abouts(read(tmp_path, "tcp://no.such.host.invalid:7070"))


def test_an_old_package_is_named(tmp_path):
    """A folder of other packages before the installed ones, as old PYTHONPATHs have."""
    info = tmp_path / "pyzmq-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyzmq\nVersion: 1.0\n")
    script = "from bbgrap.doctor import local_facts; print([p for p in local_facts._packages() if not p.fits])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}"], capture_output=True, text=True, check=True
    )
    assert "Package(name='pyzmq', needed='>=26', found='1.0', fits=False)" in done.stdout


def test_memory_of_a_container_and_its_throttling(tmp_path):
    files = {"a/memory.max": "3000000", "a/memory.current": "2500000", "a/memory.stat": "anon 1\ninactive_file 150000\nactive_file 50000"}
    root = tree(tmp_path, "0::/a\n", {**files, "a/cpu.max": "150000 100000", "a/cpu.stat": "nr_periods 200\nnr_throttled 50"})
    facts = read_machine(tmp_path, "localhost", root)
    assert (facts.free_memory_bytes, facts.quota_cores, facts.throttled) == (700_000, 1.5, 0.25)


def test_the_memory_of_a_container_is_all_there_is(tmp_path):
    """512 MiB of it, and 23.5 GiB in the machine: 181 MiB were said to be free of these."""
    limits = {"a/memory.max": str(512 << 20), "a/memory.current": str(331 << 20), "a/memory.stat": "inactive_file 0"}
    facts = read_machine(tmp_path, "localhost", tree(tmp_path / "root", "0::/a\n", limits))
    assert (facts.free_memory_bytes >> 20, facts.memory_bytes >> 20) == (181, 512)


def test_a_real_quota_is_named():
    files = {"": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}, "v2": {"cpu.max": "50000 100000"}}
    with real_group("cpu", files) as folder:
        script = "from bbgrap.cli.main import run; input(); import sys; sys.argv = ['bbgrap', 'doctor']; run()"
        process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        (Path(folder) / "cgroup.procs").write_text(str(process.pid))
        printed, _ = process.communicate("\n", timeout=60)
    assert "CPU quota: its control group leaves 0.5 of" in printed


def test_a_folder_that_cannot_even_be_looked_at_is_a_finding(tmp_path, monkeypatch):
    """Below a folder that this user may not read, the error ended the doctor."""

    def refused(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "exists", refused)
    assert local_facts.write_fault(tmp_path / "cache") == "Permission denied"
    assert free_bytes(tmp_path / "cache") == 0


def test_a_machine_without_a_place_for_temporary_files_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/dev/null"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    found = [each for each in check_here(read(tmp_path)) if each.about == "folder, temporary files"]
    assert [(each.severity, "TMPDIR" in each.advice) for each in found] == [("error", True)]

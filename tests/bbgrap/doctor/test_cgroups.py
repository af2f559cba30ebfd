"""Limits of containers: in trees made by hand, and in a real group."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from bbgrap_agent.introduction import cores_to_use, memory_limit

from bbgrap.cluster.types import AGENT_BYTES
from bbgrap.doctor.cgroups import memory_bytes, memory_group, processors

GROUPS = Path("/sys/fs/cgroup")


def tree(root, cgroup, files):
    """Make a root directory with these control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def test_the_least_limit_above_counts(tmp_path):
    root = tree(tmp_path, "0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "3000", "memory.max": "max", "a/b/cpu.max": "max 100000"})
    assert memory_bytes(root) == 3000
    assert memory_limit(root) == 1
    assert processors(root) is None


def test_what_an_agent_itself_takes_is_not_there_for_plans(tmp_path):
    root = tree(tmp_path, "0::/a\n", {"a/memory.max": str(600 << 20), "memory.max": "max"})
    assert memory_limit(root) == (600 << 20) - AGENT_BYTES


def test_what_a_process_may_not_map_is_not_there_for_plans():
    """As batch systems limit it. Workers ended without a reason while they took in weights that they had no room for."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30));"
    code += "from bbgrap_agent.introduction import memory_limit; import psutil; print(memory_limit(), psutil.Process().memory_info().vms)"
    limit, mapped = map(int, subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split())
    assert 0 < limit <= (3 << 30) - AGENT_BYTES - (100 << 20)
    assert abs(limit - ((3 << 30) - AGENT_BYTES - mapped)) < 64 << 20


def test_groups_that_limit_memory_are_told_apart(tmp_path):
    limits = {"pod/memory.max": str(600 << 20), "pod/a/memory.max": "max", "pod/b/memory.max": str(100 << 20)}
    a, b = (tree(tmp_path / name, f"0::/pod/{name}\n", limits) for name in "ab")
    assert memory_group(a) == memory_group(a) != memory_group(b)
    (a / "proc/self/cgroup").write_text("0::/pod\n")
    pod = memory_group(a)
    (a / "proc/self/cgroup").write_text("0::/pod/a\n")
    assert memory_group(a) == pod
    assert memory_group(tree(tmp_path / "c", "0::/pod\n", {"pod/memory.max": "max"})) == ""


def test_processor_time_is_a_part_of_cores(tmp_path):
    root = tree(tmp_path, "0::/a\n", {"a/cpu.max": "150000 100000", "cpu.max": "max 100000"})
    assert processors(root) == 1.5
    assert cores_to_use(root) == 1


def test_the_first_version(tmp_path):
    files = {
        "memory/svc/memory.limit_in_bytes": "5000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "cpu,cpuacct/svc/cpu.cfs_quota_us": "50000",
        "cpu,cpuacct/svc/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    root = tree(tmp_path, "4:memory:/svc\n3:cpu,cpuacct:/svc\n0::/\n", files)
    assert memory_bytes(root) == 5000
    assert processors(root) == 0.5
    assert cores_to_use(root) == 1


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    root = tree(tmp_path, "4:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": "7000"})
    assert memory_bytes(root) == 7000


@pytest.mark.parametrize("cgroup", ["", "0::/../x\n", "nonsense\n"])
def test_without_limits_it_is_the_machine(tmp_path, cgroup):
    root = tree(tmp_path, cgroup, {})
    assert memory_limit(root) == psutil.virtual_memory().total - AGENT_BYTES
    assert cores_to_use(root) == len(os.sched_getaffinity(0))


def test_without_control_groups_it_is_the_machine(tmp_path):
    assert memory_bytes(tmp_path) is processors(tmp_path) is None


@contextlib.contextmanager
def real_group(controller, files):
    """Make a control group at the top of a hierarchy, or skip; it is removed again."""
    for name, prefix in ((f"{controller}/bbgrap-test-{os.getpid()}", ""), (f"bbgrap-test-{os.getpid()}", "v2")):
        folder = GROUPS / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            try:
                for file, content in files[prefix].items():
                    (folder / file).write_text(content)
            except OSError:
                continue
            yield folder
            return
        finally:
            folder.rmdir()
    pytest.skip("control groups cannot be made here: not root, or mounted read-only")


def test_a_real_group_limits_the_cores():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core only: a group can leave no less")
    files = {"": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}, "v2": {"cpu.max": "100000 100000"}}
    with real_group("cpu", files) as folder:
        script = "from bbgrap_agent.introduction import cores_to_use; input(); print(cores_to_use())"
        process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        (folder / "cgroup.procs").write_text(str(process.pid))
        printed, _ = process.communicate("\n", timeout=60)
    assert printed.strip() == "1"

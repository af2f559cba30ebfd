"""Files of the weights cache: damage is found without mapping them, and those that ended a worker are named and removed."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from bbgrap_agent.nanny import Nanny
from bbgrap_agent.weight_files import DeployedFiles, fault_of, weight_file
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.compiler.artifacts import SegmentModel, WeightRef
from bbgrap.graph.types import DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.messages import Deploy, Release
from bbgrap.runtime.schedule import Schedule


def saved(folder, array):
    path = weight_file(folder, digest_of(array))
    np.save(path, array)
    return path


def deploy_of(*arrays):
    weights = {
        f"w{number}": WeightRef(digest_of(array), TensorType(DType.of(array.dtype), array.shape)) for number, array in enumerate(arrays)
    }
    return Deploy(1, (), Schedule(0, 1, (), ()), (SegmentModel("s", "0" * 64, b"", (), (), weights),))


A, B = np.arange(300, dtype=np.float32), np.arange(6, dtype=np.int64).reshape(2, 3)


@pytest.mark.parametrize("array", [A, B, np.array(3.0), np.zeros((0, 3), np.float16), np.ones((2, 2), bool)], ids=str)
def test_what_was_written_is_intact(tmp_path, array):
    assert fault_of(saved(tmp_path, array)) == ""


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda content: content[:-1], "it has 1327 bytes, expected 1328"),
        (lambda content: content + b"\0", "it has 1329 bytes, expected 1328"),
        (lambda content: content[:-1] + b"\1", "its content has another digest"),
        (lambda content: content.replace(b"False", b"True "), "its content has another digest"),
        (lambda content: content.replace(b"(300,)", b"(3, 100"), "it is no array"),
        (lambda content: content[:40], "it is no array"),
        (lambda content: b"", "it is no array"),
    ],
)
def test_damage_is_found(tmp_path, damage, fault):
    path = saved(tmp_path, A)
    path.write_bytes(damage(path.read_bytes()))
    assert fault_of(path) == fault


def test_what_cannot_be_read_is_no_error(tmp_path):
    assert fault_of(tmp_path / "gone.npy") == "it is gone"
    assert fault_of(tmp_path) == "it cannot be read: Is a directory"


WITHOUT_MEMORY = """
import pathlib, resource, sys
import psutil
from bbgrap_agent.weight_files import fault_of
from bbgrap.errors import ExecutionError
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms,) * 2)
try:
    print(fault_of(pathlib.Path(sys.argv[1])))
except ExecutionError as error:
    print(error)
"""


def test_without_memory_to_read_it_no_file_is_called_damaged(tmp_path):
    """They were removed, and sent and written again and again."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY, saved(tmp_path, A)], capture_output=True, text=True, check=True)
    assert "no memory is left; is it limited (ulimit -v)?" in done.stdout


@given(st.integers(0, 127), st.binary(min_size=1, max_size=8))
def test_a_head_of_garbage_is_a_fault_whatever_it_is(tmp_path_factory, place, garbage):
    path = saved(tmp_path_factory.mktemp("cache"), A)
    whole = path.read_bytes()
    content = whole[:place] + garbage + whole[place + len(garbage) :]
    path.write_bytes(content)
    assert bool(fault_of(path)) or np.array_equal(np.load(path), A)


def test_of_what_was_deployed_the_damaged_is_named_and_removed(tmp_path):
    paths = [saved(tmp_path, array) for array in (A, B)]
    files = DeployedFiles(tmp_path)
    files.note(deploy_of(A, B, np.zeros(9)))
    assert files.drop_damaged() == ""
    os.truncate(paths[1], 150)
    assert files.drop_damaged() == f"'{paths[1].name}': it has 150 bytes, expected 176"
    assert [path.exists() for path in paths] == [True, False]


def test_contents_are_looked_at_where_all_sizes_are_right(tmp_path):
    path = saved(tmp_path, A)
    files = DeployedFiles(tmp_path)
    files.note(deploy_of(A))
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert files.drop_damaged() == f"'{path.name}': its content has another digest"
    assert not path.exists()


def test_what_another_agent_has_found_damaged_is_not_blamed_on_the_model(tmp_path):
    gone, anew = (saved(tmp_path, array) for array in (A, B))
    files = DeployedFiles(tmp_path)
    files.note(deploy_of(A, B))
    gone.unlink()
    anew.rename(tmp_path / "held")  # so that its inode is not taken again
    saved(tmp_path, B)
    assert set(files.drop_damaged().split("; ")) == {f"'{gone.name}': it is gone", f"'{anew.name}': it was written anew"}
    assert anew.exists()


def test_what_was_released_is_not_blamed_for_the_end_of_a_worker(tmp_path):
    """Its files make room for others, and a model that crashes its workers counted as a damaged file: it was never given up."""
    first, second = (saved(tmp_path, array) for array in (A, B))
    files = DeployedFiles(tmp_path)
    files.note(deploy_of(A))
    files.note(replace(deploy_of(A, B), epoch=2))
    nanny = Nanny(None, None, None)
    nanny._child = SimpleNamespace(files=files, pipe=SimpleNamespace(send=lambda message: None))
    nanny.tell(Release(2))
    second.unlink()
    assert files.drop_damaged() == ""
    first.unlink()
    assert files.drop_damaged() == f"'{first.name}': it is gone"
    nanny.tell(Release(1))
    assert files.drop_damaged() == ""


def test_a_reason_names_some(tmp_path):
    arrays = [np.full(3, number, np.float32) for number in range(5)]
    files = DeployedFiles(tmp_path)
    paths = [saved(tmp_path, array) for array in arrays]
    files.note(deploy_of(*arrays))
    for path in paths:
        path.unlink()
    assert files.drop_damaged().endswith("; and 2 more")

"""The Python snippets of the documents run, on small models."""

import contextlib

import pytest

import bbgrap
from tests.docs.conftest import picture
from tests.docs.documents import documents

pytestmark = pytest.mark.cluster

SNIPPETS = [(document.name, block) for document in documents() for block in document.blocks("python")]
NAMES = [f"{name} {number}" for number, (name, _) in enumerate(SNIPPETS)]


PARAMETERS = [
    pytest.param(*case, id=name, marks=() if case[0] == "README.md" else pytest.mark.broad)
    for case, name in zip(SNIPPETS, NAMES, strict=True)
]


@pytest.mark.parametrize(("document", "snippet"), PARAMETERS)
def test_a_snippet_runs(document, snippet, address, folder, monkeypatch, request):
    @contextlib.contextmanager
    def there(*_, agents, **__):
        with bbgrap.connect(address) as connection:
            connection.connection = connection  # as a local cluster has
            assert len(connection.nodes()) == agents
            yield connection

    if document != "README.md":  # that one starts a cluster of its own, the others use the one that is there
        for name in ("LocalCluster", "RayCluster", "DaskCluster", "SSHCluster"):
            monkeypatch.setattr(bbgrap, name, there, raising=False)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BBGRAP_COORDINATOR", address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    exec(compile(snippet, document, "exec"), {"x": picture(), "images": [picture()] * 3})  # noqa: S102 - that is what is tested

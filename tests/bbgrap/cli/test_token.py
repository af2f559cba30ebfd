"""`bbgrap token`: what it prints of keys."""

import contextlib
import time
from types import SimpleNamespace

import pytest

from bbgrap.protocol.key_messages import KeyStatus


@pytest.mark.parametrize(
    ("lasts_s", "revoked", "state"), [(0.0, 0.0, "valid"), (60.0, 0.0, "until"), (-60.0, 0.0, "expired"), (-60.0, 1.0, "revoked")]
)
def test_a_token_that_has_expired_is_not_listed_as_one_that_goes_on(run, monkeypatch, lasts_s, revoked, state):
    key = KeyStatus("laptop", "client", "0" * 64, 1.0, time.time() + lasts_s if lasts_s else 0.0, revoked, "", 0)
    cluster = SimpleNamespace(tokens=lambda: (key,))
    monkeypatch.setattr("bbgrap.cli.clusters.open_cluster", lambda *_, **__: contextlib.nullcontext(cluster))
    assert f"  {state}" in run("token", "list").stdout.splitlines()[1]

"""`bbgrap token`: what it prints of keys."""

import contextlib
import time
from types import SimpleNamespace

import pytest

from bbgrap.protocol.key_messages import KeyStatus


@pytest.mark.parametrize(
    ("lasts", "revoked", "state"), [(0, 0.0, "valid"), (60, 0.0, "until"), (-60, 0.0, "expired"), (-60, 1.0, "revoked")]
)
@pytest.mark.parametrize("ahead_s", [0.0, 86_400.0, -86_400.0])
def test_a_token_that_has_expired_is_not_listed_as_one_that_goes_on(run, monkeypatch, lasts, revoked, state, ahead_s):
    """By the coordinator's clock, which decides; this machine's may be wrong."""
    expires = time.time() + ahead_s + lasts if lasts else 0.0
    key = KeyStatus("laptop", "client", "0" * 64, 1.0, expires, revoked, "", 0, valid=lasts >= 0 and not revoked)
    cluster = SimpleNamespace(tokens=lambda: (key,))
    monkeypatch.setattr("bbgrap.cli.clusters.open_cluster", lambda *_, **__: contextlib.nullcontext(cluster))
    assert f"  {state}" in run("token", "list").stdout.splitlines()[1]

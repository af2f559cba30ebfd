"""A peer is warned of once, and strangers without end fill neither log nor memory."""

import logging

from bbgrap.transport.strangers import MOST_PEERS, PeerWarnings


def test_each_peer_is_warned_of_once(caplog):
    warnings = PeerWarnings(logging.getLogger("bbgrap.test"))
    for number in range(2 * MOST_PEERS):
        for text in ("first", "second"):
            warnings.warn(str(number), text)
    assert [record.getMessage() for record in caplog.records] == [f"{number}: first" for number in range(MOST_PEERS)]

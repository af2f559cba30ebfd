"""A peer is complained of once, and strangers without end fill neither log nor memory."""

import logging

from bbgrap.transport.complaints import MOST_PEERS, Complaints


def test_each_peer_is_complained_of_once(caplog):
    complaints = Complaints(logging.getLogger("bbgrap.test"))
    for number in range(2 * MOST_PEERS):
        for text in ("first", "second"):
            complaints.about(str(number), text)
    assert [record.getMessage() for record in caplog.records] == [f"{number}: first" for number in range(MOST_PEERS)]

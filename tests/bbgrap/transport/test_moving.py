"""Who has sent or taken something lately: what is still on its way is not lost."""

import sys

import pytest

from tests.bbgrap.transport.locked import pair
from tests.waiting import until

HEADER, LARGE = b"h", bytes(24 << 20)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")


def test_who_sends_or_takes_something_large_is_moving_and_who_takes_nothing_or_has_all_is_not():
    with pair() as (sender, target):

        def nobody() -> bool:
            return not sender.moving() | target.moving()

        def arrived() -> bool:
            came = target.receive(0) is not None
            moving.update(sender.moving() | target.moving())
            return came

        moving = set[str]()
        sender.send(target.address, HEADER, b"small")
        until(arrived)
        assert sender.fingerprint in moving
        until(nobody)
        sender.send(target.address, HEADER, LARGE)
        assert not arrived()
        until(nobody)  # the target reads no more, and its system takes no more
        moving.clear()
        until(arrived)
        assert moving == {sender.fingerprint, target.fingerprint}
        until(nobody)

"""What a coordinator is started with."""

import socket
from contextlib import closing

from bbgrap_coordinator.service import _data_plane

from bbgrap.protocol.addresses import split_address


def test_where_the_port_of_the_last_time_is_taken_there_is_another():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with closing(_data_plane("127.0.0.1", 0, port, "")) as plane:
            assert split_address(plane.address)[1] not in {"0", str(port)}

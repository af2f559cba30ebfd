"""A planner's process that a hostile model has taken over: what it does is the name of the planner that is asked for."""

import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgpack
from bbgrap_coordinator.planning import Reply, Task

from bbgrap.transport.exit_with_parent import exit_with_parent


def main() -> None:
    exit_with_parent(lambda: os._exit(0))
    channel = Connection(int(sys.argv[2]))
    while True:
        task: Task = channel.recv()
        assert task.plan is not None
        act(task.plan[2].planner, task.folder, channel)


def act(what: str, folder: Path, channel: Connection) -> None:
    match what:
        case "sleeps":
            (folder / "weights").write_bytes(b"begun")
            time.sleep(600)
        case "exits":
            sys.exit(7)
        case "says nothing understandable":
            channel.send_bytes(b"\x80\x05]q\x00.")
        case "says a fault that does not exist":
            channel.send_bytes(b'["doom", "", ""]')
        case "says too much":
            channel.send_bytes(bytes(2 << 20))
        case "says control characters":
            channel.send_bytes(Reply("plan", "a\x1b[2Jb" + "c" * 100_000).to_bytes())
        case "leaves nothing":
            channel.send_bytes(Reply().to_bytes())
        case "leaves no variants":
            (folder / "weights").write_bytes(b"")
            (folder / "variants").write_bytes(msgpack.packb([[], {}]))
            channel.send_bytes(Reply().to_bytes())
        case "leaves a folder":
            (folder / "variants").mkdir()
            channel.send_bytes(Reply().to_bytes())
        case _:
            channel.send_bytes(Reply("model", f"no such trick: {what}").to_bytes())


if __name__ == "__main__":
    main()

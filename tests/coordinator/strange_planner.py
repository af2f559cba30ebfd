"""A planner's process that a hostile model has taken over: what it does is the name of the planner that is asked for."""

import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgpack
from bbgrap_coordinator.artifacts import write_artifacts
from bbgrap_coordinator.planner_process import PlannerReply, Task

from bbgrap.transport.process import exit_with_parent
from tests.coordinator.made import ARRAYS, variant


def main() -> None:
    exit_with_parent(lambda: os._exit(0))
    channel = Connection(int(sys.argv[2]))
    while True:
        task: Task = channel.recv()
        assert task.plan is not None
        act(task.plan.options.planner, task.folder, channel)


SAYINGS = {
    "says nothing understandable": b"\x80\x05]q\x00.",
    "says a fault that does not exist": b'["doom", "", ""]',
    "says a fault that is not its own": b'["unknown-plan", "try again", ""]',
    "says that the disk is full": PlannerReply("busy", "the disk is full").to_bytes(),
    "says too much": bytes(2 << 20),
    "says control characters": PlannerReply("plan", "a\x1b[2Jb" + "c" * 100_000).to_bytes(),
    "leaves nothing": PlannerReply().to_bytes(),
}


def act(what: str, folder: Path, channel: Connection) -> None:
    match what:
        case "sleeps":
            (folder / "weights").write_bytes(b"begun")
            time.sleep(600)
        case "computes":
            began = time.thread_time()
            while time.thread_time() < began + 0.3:
                pass
            channel.send_bytes(PlannerReply("plan", "it has computed").to_bytes())
        case "exits":
            sys.exit(7)
        case "leaves a plan for other devices":
            write_artifacts(folder, [variant(ARRAYS)])
            channel.send_bytes(PlannerReply().to_bytes())
        case "leaves no variants":
            (folder / "weights").write_bytes(b"")
            (folder / "variants").write_bytes(msgpack.packb([[], {}, {}, {}]))
            channel.send_bytes(PlannerReply().to_bytes())
        case "leaves a pipe":
            os.mkfifo(folder / "variants")
            channel.send_bytes(PlannerReply().to_bytes())
        case "leaves a link":
            write_artifacts(folder, [variant(ARRAYS)])
            (folder / "weights").rename(folder.parent.parent / "secret")
            (folder / "weights").symlink_to(folder.parent.parent / "secret")
            channel.send_bytes(PlannerReply().to_bytes())
        case "leaves a folder":
            (folder / "variants").mkdir()
            channel.send_bytes(PlannerReply().to_bytes())
        case _:
            channel.send_bytes(SAYINGS.get(what) or PlannerReply("model", f"no such trick: {what}").to_bytes())


if __name__ == "__main__":
    main()

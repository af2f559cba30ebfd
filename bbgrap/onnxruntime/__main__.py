"""Runs a Python program as `python SCRIPT ARGS` or `python -m MODULE ARGS` would, except that its sessions are on the cluster.

The program's own traceback is shown, exit codes and `sys.argv` are its own. Its threads and the processes of `multiprocessing` are
served as well; another interpreter that it starts is not.
"""

from __future__ import annotations

import io
import runpy
import sys
import zipfile
from pathlib import Path
from types import ModuleType, TracebackType

import bbgrap.onnxruntime.served  # noqa: F401 - it puts our sessions into their place


def run(arguments: list[str]) -> None:
    """Run `[-m] PROGRAM ARGS`."""
    is_module, rest = arguments[:1] == ["-m"], arguments[arguments[:1] == ["-m"] :]
    if not rest:
        sys.exit("usage: python -m bbgrap.onnxruntime [-m] SCRIPT [ARGS...]")
    program, sys.argv = rest[0], list(rest)
    sys.excepthook = _show
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if Path(program).is_dir() or zipfile.is_zipfile(program):
        del sys.path[0]  # `run_path` puts the program there
        runpy.run_path(program, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(program).resolve().parent)
    # Not by `run_path`, which would change the program's name in `sys.argv`, and take its module away while its threads go on.
    file = str(Path(program).absolute())
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__file__"] = file
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)  # not the __future__ of this file
    exec(code, main.__dict__)  # noqa: S102 - the user's own program


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show a traceback that begins in the program."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    inner = trace
    while inner is not None and inner.tb_frame.f_code.co_filename in ours:
        inner = inner.tb_next
    if inner is None and isinstance(error, ImportError):  # there is no such module, which `python -m` says in a line, too
        sys.stderr.write(f"bbgrap exec: {error}\n")
        return
    sys.__excepthook__(kind, error.with_traceback(inner or trace), inner or trace)


if __name__ == "__main__":
    run(sys.argv[1:])

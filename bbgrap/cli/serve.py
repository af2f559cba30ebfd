"""`bbgrap serve`: models for clients of the Open Inference Protocol, over HTTP and gRPC."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.options import LocalAgents, Threads, Where, plan_options, takes, where_is
from bbgrap.cli.output import print_result, say
from bbgrap.errors import UsageError
from bbgrap.observing.logs import LogFormat, write_logs
from bbgrap.planners.options import PlanOptions

if TYPE_CHECKING:
    from bbgrap.serving.gateway import Gateway
    from bbgrap.serving.listening import HttpListener
    from bbgrap.serving.repository import Repository
    from bbgrap.serving.tracing import Tracing
    from bbgrap.session import Connection
    from bbgrap.session.state_pairs import StateText


@takes(options=plan_options, where=where_is)
def serve(
    options: PlanOptions,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[[NAME=]MODEL]...", help="Models: .onnx files or zoo:NAME, and what to call them.", show_default=False),
    ] = None,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where HTTP is spoken; port 0: a free one.")] = "127.0.0.1:8000",
    grpc: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where gRPC is spoken; default: nowhere.", show_default=False)] = "",
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Further names that HTTP clients call this server by, as that of a proxy; '*': any.", show_default=False
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--models", metavar="DIR", help="Serve a folder of NAME.onnx, or of NAME/1/model.onnx as Triton has it.", show_default=False
        ),
    ] = None,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Requests that wait together go as one, up to this many rows; 1: each by itself.")
    ] = 1,
    batch_delay: Annotated[float, typer.Option(min=0, metavar="MS", help="Wait so long for a batch to be filled.")] = 0.0,
    max_in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Requests at once; others are told to come again (429).")] = 64,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=IN:OUT[:SHAPE],...]",
            help="A model with state, and which outputs are inputs of the next request (IN:IN: it stays); default: found by names. "
            "Requests name a sequence.",
            show_default=False,
        ),
    ] = None,
    max_sequences: Annotated[
        int, typer.Option(min=1, max=16_384, help="Sequences of a model at once; then the one that is idle for longest ends.")
    ] = 1024,
    max_body: Annotated[int, typer.Option(min=1, max=2047, metavar="MIB", help="The largest request, in MiB (413).")] = 256,
    otlp: Annotated[
        str,
        typer.Option(metavar="URL", help="Send spans of requests there (OTLP/HTTP), as http://HOST:4318/v1/traces.", show_default=False),
    ] = "",
    record_every: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Record one request of a model so often, while a page is open or spans are sent."),
    ] = 10.0,
    log_format: Annotated[
        LogFormat, typer.Option(envvar="BBGRAP_LOG_FORMAT", help="Lines of the log as text, or as JSON, an object a line.")
    ] = LogFormat.TEXT,
    agents: LocalAgents = None,
    threads: Threads = 1,
    *,
    where: Where,
) -> None:
    """Serve models over HTTP and gRPC, for clients of Triton and KServe (Open Inference Protocol v2), until Ctrl-C.

    A page at / shows what the cluster does, /metrics is for Prometheus.

    Example:
        bbgrap serve zoo:resnet50 detector=yolo.onnx --agents 2

        bbgrap serve --models models --http 0.0.0.0:8000 --grpc 0.0.0.0:8001 --coordinator tcp://head:7070
    """
    named = _named(models or [])
    if not named and folder is None:
        raise UsageError("which models? give some, or a folder of them with --models DIR")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--models {folder}: there is no such folder")
    states = _states(state or [])
    try:
        from bbgrap.serving.gateway import Gateway, Limits
        from bbgrap.serving.repository import entries_of
        from bbgrap.serving.server import host_and_port, listen
        from bbgrap.transport.process import allow_many_descriptors
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        raise UsageError(f"serve: {package} is not installed: pip install 'bbgrap[serve]'") from None
    if grpc:
        host_and_port("--grpc", grpc)  # gRPC would take another port where there is none
    if unknown := states.keys() - (known := entries_of(named, folder)).keys():
        raise UsageError(f"--state {min(unknown)}: no model is called so; there are {', '.join(sorted(known)) or 'none'}")
    # Before agents are started, which write like this process.
    write_logs(log_format)
    logging.getLogger().setLevel(logging.WARNING)
    allow_many_descriptors()
    limits = Limits(max_in_flight, max_body << 20, max_batch, batch_delay / 1e3)
    with (
        listen("--http", http) as listening,
        _tracing(otlp, record_every) as tracing,
        where.open(agents, threads) as connection,
    ):
        for option, address in (("--http", http), ("--grpc", grpc)):
            if address and not address.startswith(("127.", "localhost:", "[::1]:")):
                say(f"{option} {address}: whoever reaches it may use these models, and what is sent can be read on the network")
        gateway = Gateway(connection, _repository(connection, named, folder, options, states, max_sequences), limits, tracing)
        _run(gateway, listening, grpc, host or [], _own_names(http))


def _named(texts: list[str]) -> dict[str, Path]:
    """Return the models of a command line by name.

    Raises:
        UsageError: if two have one name.
    """
    from bbgrap.cli.models import find_model

    named: dict[str, Path] = {}
    for text in texts:
        name, equals, model = text.partition("=")
        if not equals:
            model, name = text, text.removeprefix("zoo:") if text.startswith("zoo:") else Path(text).stem
        path = find_model(model)
        if not name or "/" in name:
            raise UsageError(f"model '{text}': expected a name without '/' before '='")
        if name in named:
            raise UsageError(f"model '{text}': there is a '{name}' already; name one of them otherwise: OTHER={model}")
        if not path.exists():
            raise UsageError(f"model '{text}': there is no file {path}")
        named[name] = path
    return named


def _states(texts: list[str]) -> dict[str, StateText]:
    """Return what is said of models' state, by their names.

    Raises:
        UsageError: if it is no list of pairs, or two are of one model.
    """
    from bbgrap.session.state_pairs import StateText

    states: dict[str, StateText] = {}
    for text in texts:
        name, equals, said = text.partition("=")
        if name in states:
            raise UsageError(f"--state {text}: '{name}' is there twice")
        states[name] = StateText.parse(said if equals else "auto")
    return states


def _own_names(http: str) -> Collection[str]:
    """Return what clients may call the server without `--host`: where it listens, and the machine's own name."""
    import socket

    from bbgrap.protocol.addresses import host_of

    return {host_of(http), socket.gethostname()}


@contextmanager
def _tracing(otlp: str, every_s: float) -> Iterator[Tracing]:
    from bbgrap.serving.tracing import Tracing

    if not otlp:
        yield Tracing(every_s)
        return
    if not otlp.startswith(("http://", "https://")) or not otlp.partition("//")[2]:
        raise UsageError(f"--otlp {otlp}: expected a URL, like http://127.0.0.1:4318/v1/traces")
    from bbgrap.observing.spans import Spans

    with closing(Spans(otlp)) as spans:
        yield Tracing(every_s, spans)


def _repository(
    connection: Connection, named: dict[str, Path], folder: Path | None, options: PlanOptions, states: Mapping[str, StateText], most: int
) -> Repository:
    """Return the models that are served, of which each has at most so many sequences at once."""
    from bbgrap.serving.gateway import DEADLINE_S
    from bbgrap.serving.model import ServedModel
    from bbgrap.serving.repository import Repository, RepositoryEntry

    def load(entry: RepositoryEntry) -> ServedModel:
        return ServedModel.load(entry.name, entry.version, entry.path, connection, options, DEADLINE_S, states.get(entry.name), most)

    return Repository(named, folder, load)


def _run(gateway: Gateway, listening: HttpListener, grpc: str, names: Collection[str], own_names: Collection[str]) -> None:
    import asyncio
    import sys

    from bbgrap.serving.page_routes import page_routes
    from bbgrap.serving.server import serve as run

    def ready(url: str, rpc: str) -> None:
        print_result(url)
        sys.stdout.flush()
        served = ", ".join(sorted(gateway.repository.models)) or "no model"
        say(f"serving {served}{f', gRPC at {rpc}' if rpc else ''}; the URL shows the cluster; Ctrl-C stops it")

    asyncio.run(run(gateway, listening, grpc, ready, page_routes(gateway), names, own_names))

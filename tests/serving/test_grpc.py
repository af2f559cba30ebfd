"""The protocol over gRPC, from a real process on a real cluster."""

import asyncio
import socket
import struct
from contextlib import AsyncExitStack, ExitStack, suppress

import grpc
import numpy as np
import pytest

from bbgrap.serving.gateway import Gateway, Limits
from bbgrap.serving.grpc import start_grpc
from bbgrap.serving.grpc_schema import SERVICE, message
from bbgrap.serving.repository import Repository
from tests.serving.clients import NAMES, grpc_outputs
from tests.serving.test_http import ROWS, bfloat16, every_type, same

pytestmark = pytest.mark.cluster

CONTENTS = {
    "BOOL": "bool_contents",
    "UINT64": "uint64_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
}


def request(model="rows", **fields):
    made = message("ModelInferRequest")(model_name=model, **fields)
    made.inputs.add(name="x", datatype="FP32", shape=ROWS.shape)
    made.raw_input_contents.append(ROWS.tobytes())
    return made


def refused(rpc, made, timeout=60.0):
    with pytest.raises(grpc.RpcError) as caught:
        rpc.send("ModelInfer", made, timeout)
    return caught.value


def test_questions_are_answered(rpc, http):
    assert rpc.ask("ServerLive").live
    assert rpc.ask("ServerReady").ready
    assert rpc.ask("ModelReady", name="rows").ready
    assert not rpc.ask("ModelReady", name="nix").ready
    assert rpc.ask("ServerMetadata").name == "bbgrap"
    assert list(rpc.ask("ModelMetadata", name="rows").inputs[0].shape) == [-1, 4]
    config = rpc.ask("ModelConfig", name="types").config
    by_name = {item.name: item.data_type for item in config.input}
    names = {value.number: value.name for value in config.DESCRIPTOR.file.enum_types_by_name["DataType"].values}
    assert {name: names[by_name[f"in_{name}"]] for name in ("FP32", "BYTES")} == {"FP32": "TYPE_FP32", "BYTES": "TYPE_STRING"}
    index = {model.name: (model.version, model.state) for model in rpc.ask("RepositoryIndex").models}
    assert index["rows"] == ("1", "READY")
    assert index == {line["name"]: (line["version"], line["state"]) for line in http.json("POST", "/v2/repository/index")[1]}
    rpc.run("rows", {"x": ROWS})
    (stats,) = rpc.ask("ModelStatistics", name="rows").model_stats
    assert stats.inference_stats.success.count == stats.inference_count > 0


def test_answers_are_those_of_http_to_the_bit(rpc, http):
    got, want = rpc.run("rows", {"x": ROWS}), http.run("rows", {"x": ROWS})
    assert {name: array.tobytes() for name, array in got.items()} == {name: array.tobytes() for name, array in want.items()}
    for model, feed in (("types", every_type()), ("bfloat16", bfloat16())):
        answer = rpc.run(model, feed)
        assert [name for name in feed if not same(answer[name.replace("in_", "out_")], feed[name])] == []


def test_typed_contents_are_taken(rpc):
    made, feed = message("ModelInferRequest")(model_name="types", id="mine"), every_type()
    for name, array in feed.items():
        datatype = NAMES[array.dtype]
        item = made.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if datatype in CONTENTS:
            getattr(item.contents, CONTENTS[datatype]).extend([text.encode() for text in array] if datatype == "BYTES" else array.tolist())
    error = refused(rpc, made)
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "input 'in_FP16': FP16 is given in raw_input_contents")
    item = next(item for item in made.inputs if item.name == "in_FP16")
    item.datatype = "FP32"
    item.contents.fp32_contents.extend(feed["in_FP16"].tolist())
    assert "input 'in_FP16': expected float16[3], got float32[3]" in refused(rpc, made).details()  # all others are what they should be
    made = message("ModelInferRequest")(model_name="rows", id="mine")
    made.inputs.add(name="x", datatype="FP32", shape=ROWS.shape).contents.fp32_contents.extend(ROWS.reshape(-1).tolist())
    made.outputs.add(name="z")
    answer = rpc.send("ModelInfer", made)
    assert (answer.id, answer.model_version) == ("mine", "1")
    np.testing.assert_array_equal(grpc_outputs(answer)["z"], ROWS.max(1, keepdims=True))


def test_wrong_requests_are_told_what_is_wrong(rpc):
    assert refused(rpc, request("nix")).code() is grpc.StatusCode.NOT_FOUND
    assert refused(rpc, request(model_version="2")).code() is grpc.StatusCode.NOT_FOUND
    made = request()
    made.raw_input_contents.append(b"")
    assert "expected one for each of 1 inputs, got 2" in refused(rpc, made).details()
    made = request()
    made.raw_input_contents[0] = b"abc"
    assert "takes 48 bytes, got 3" in refused(rpc, made).details()
    made = request()
    made.inputs[0].contents.fp32_contents.append(1.0)
    assert "got both" in refused(rpc, made).details()
    made = request()
    del made.raw_input_contents[:]
    made.inputs[0].contents.int_contents.append(1)
    assert "FP32 is given in fp32_contents, got int_contents" in refused(rpc, made).details()
    made = request()
    made.inputs[0].shape[:] = [-1, 4]
    error = refused(rpc, made)
    assert (error.code(), "expected a list of sizes" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    made = request()
    made.parameters["sequence_id"].int64_param = 3
    assert "is served without state (--state)" in refused(rpc, made).details()
    made = request()
    made.raw_input_contents[0] = bytes(2 << 20)
    assert refused(rpc, made).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("begin", ["", "x"])
def test_long_reasons_are_cut_between_characters(rpc, begin):
    """A status of more than some KiB arrives as RESOURCE_EXHAUSTED."""
    made = request()
    made.inputs[0].name = begin + "é" * 20_000
    error = refused(rpc, made)
    assert (error.code(), error.details()[-6:]) == (grpc.StatusCode.INVALID_ARGUMENT, "éé ...")
    assert 1000 < len(error.details().encode()) < 1030


def test_deadlines_end_requests(rpc):
    slow = message("ModelInferRequest")(model_name="slow")
    for name, array in (("x", np.zeros(1)), ("times", np.array(3_000_000))):
        slow.inputs.add(name=name, datatype=NAMES[array.dtype], shape=array.shape)
        slow.raw_input_contents.append(array.tobytes())
    assert refused(rpc, slow, timeout=0.2).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    slow.parameters["timeout"].int64_param = 200_000
    error = refused(rpc, slow)
    assert (error.code(), error.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, "model 'slow': its deadline of 0.2 s passed")


def test_a_message_that_does_not_come_is_not_waited_for(monkeypatch):
    """Calls without a message took the places of all others."""
    monkeypatch.setitem(start_grpc.__globals__, "BODY_S", 0.2)  # the module may have been loaded anew by another test

    async def never():
        await asyncio.sleep(60)
        yield b""

    async def ask():
        server, port = await start_grpc(Gateway(None, Repository({}, None, lambda _: None), Limits()), "127.0.0.1:0")
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.RpcError) as caught:
                    await channel.stream_unary(f"/{SERVICE}/ServerLive")(never(), timeout=30)
                return caught.value
        finally:
            await server.stop(None)

    error = asyncio.run(ask())
    assert (error.code(), "the message did not come within 0.2 s" in error.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, True)


def test_no_message_is_read_of_who_finds_no_place(monkeypatch):
    """40 clients with 60 MB each took 4.6 GB of a server that takes two requests at once: all but two were refused once theirs was read."""
    monkeypatch.setitem(start_grpc.__globals__, "BODY_S", 0.3)

    async def ask():
        server, port = await start_grpc(Gateway(None, Repository({}, None, lambda _: None), Limits(in_flight=2)), "127.0.0.1:0")
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                go_on = asyncio.Event()

                async def waiting():
                    await go_on.wait()
                    yield b""

                def begin():
                    return channel.stream_unary(f"/{SERVICE}/ModelInfer")(waiting(), timeout=30, wait_for_ready=True)

                calls = [begin() for _ in range(6)]
                while len(refused := [call for call in calls if call.done()]) < 4:
                    await asyncio.sleep(0.01)
                told = [(await call.code(), dict(await call.trailing_metadata()).get("retry-after")) for call in refused]
                await channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=30)
                await asyncio.sleep(0.4)
                slow = [call for call in calls if not call.done()]  # nobody has wanted their places
                another = begin()
                while not (lost := [call for call in slow if call.done()]):
                    await asyncio.sleep(0.01)
                go_on.set()
                return told, len(slow), await lost[0].details(), [await call.code() for call in (*slow, another) if call not in lost]
        finally:
            await server.stop(None)

    told, patient, lost, last = asyncio.run(asyncio.wait_for(ask(), 30))
    assert (told, patient) == ([(grpc.StatusCode.RESOURCE_EXHAUSTED, "1")] * 4, 2)
    assert "others waited for its place" in lost
    assert last == [grpc.StatusCode.NOT_FOUND] * 2  # they got in: there is no such model


def test_calls_without_a_message_keep_nobody_out_and_a_connection_has_only_so_many(monkeypatch):
    """Who opened as many as there are places had all of them for 30 s; a flood of calls had those of others cancelled, by grpc itself."""
    monkeypatch.setitem(start_grpc.__globals__, "_MOST_AWAITED", 4)
    most = 1 + start_grpc.__globals__["_BESIDE"]

    async def never():
        await asyncio.sleep(60)
        yield b""

    async def ask():
        server, port = await start_grpc(Gateway(None, Repository({}, None, lambda _: None), Limits(in_flight=1)), "127.0.0.1:0")
        try:
            async with AsyncExitStack() as opened:
                own = [("grpc.use_local_subchannel_pool", 1)]
                channels = [await opened.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", own)) for _ in range(3)]
                silent = [channel.stream_unary(f"/{SERVICE}/ServerLive")(never()) for channel in channels[1:] for _ in range(most)]
                await asyncio.sleep(0.3)
                await channels[0].unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=30, wait_for_ready=True)
                first = await silent[0].code()
                for call in silent:
                    call.cancel()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                settings = await reader.readexactly(int.from_bytes((await reader.readexactly(9))[:3], "big"))
                writer.close()
                return first, dict(struct.iter_unpack(">HI", settings))
        finally:
            await server.stop(None)

    first, settings = asyncio.run(ask())
    assert (first, settings[3]) == (grpc.StatusCode.DEADLINE_EXCEEDED, most)  # 3: SETTINGS_MAX_CONCURRENT_STREAMS


@pytest.mark.parametrize("begun", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])])
def test_connections_that_ask_nothing_are_few_and_end(monkeypatch, begun):
    """They took all descriptors, and HTTP beside had none either for as long as they stayed."""
    most = 16
    for name, value in (("most_descriptors", lambda: 2 * most), ("_GREETING_S", 0.5), ("IDLE_S", 0.5)):
        monkeypatch.setitem(start_grpc.__globals__, name, value)

    def is_open(connection):
        try:
            while connection.recv(1 << 16):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def ask():
        server, port = await start_grpc(Gateway(None, Repository({}, None, lambda _: None), Limits()), "127.0.0.1:0")
        try:
            with ExitStack() as opened:
                silent = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3 * most)]
                for connection in silent:
                    with suppress(OSError):
                        connection.sendall(begun)
                    connection.setblocking(False)
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    live = channel.unary_unary(f"/{SERVICE}/ServerLive")
                    await asyncio.sleep(0.2)
                    before = sum(map(is_open, silent))
                    answer = await live(b"", timeout=30, wait_for_ready=True)
                    while any(map(is_open, silent)):
                        await asyncio.sleep(0.05)
                    assert answer == await live(b"", timeout=30)  # its own connection was idle as long, and is made anew
                return before
        finally:
            await server.stop(None)

    before = asyncio.run(asyncio.wait_for(ask(), 30))
    assert before <= most

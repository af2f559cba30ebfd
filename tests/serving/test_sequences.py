"""Sequences over the protocol, from a real process on a real cluster: each answers as plain onnxruntime does with its state in memory."""

import asyncio
import gc
import json
import threading
from contextlib import suppress

import grpc
import numpy as np
import pytest

from bbgrap.errors import StateLostError
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import EndSequence
from bbgrap.serving.infer_request import part_of
from bbgrap.serving.model import ServedModel
from bbgrap.session.sequence import StatefulRuns
from bbgrap.session.state_pairs import StateText
from tests.sequence_models import HEADS, SIZE, WIDTH, Alone, decoder, listener, lstm
from tests.serving.clients import Grpc, binary_body
from tests.serving.conftest import serving

pytestmark = pytest.mark.cluster

MOST = 3
LSTM = ({"h": "hn", "c": "cn"}, {name: np.zeros((1, 1, WIDTH), np.float32) for name in "hc"})
CACHE = {f"past_key_values.0.{kind}": np.zeros((1, HEADS, 0, SIZE), np.float32) for kind in ("key", "value")}


@pytest.fixture(scope="module")
def stateful(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stateful")
    for name, model in (("lstm", lstm()), ("decoder", decoder()), ("listener", listener()), ("plain", lstm()), ("unnamed", lstm(None))):
        (folder / f"{name}.onnx").write_bytes(model)
    options = [
        "--grpc",
        "127.0.0.1:0",
        "--state",
        "lstm=h:hn,c:cn",
        "--state",
        "decoder",
        "--state",
        "listener",
        "--max-sequences",
        str(MOST),
    ]
    options += ["--state", f"unnamed=h:hn:1x1x{WIDTH},c:cn:1x1x{WIDTH}"]
    with serving(cluster.address, folder, folder.parent / "log", *options) as server:
        yield server


@pytest.fixture
def http(stateful):
    with stateful.http() as client:
        yield client


@pytest.fixture
def rpc(stateful):
    client = Grpc(stateful.grpc)
    yield client
    client.channel.close()


def sound(random):
    return {"input": random.standard_normal((3, 1, WIDTH)).astype(np.float32)}


def part(sequence, *, start=False, end=False):
    return {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}


def refused(http, model, feed, parameters):
    body, headers = binary_body(feed, parameters={"binary_data_output": True, **parameters})
    status, answer = http.ask("POST", f"/v2/models/{model}/infer", body, headers)
    return status, json.loads(answer)["error"]


def test_sequences_by_numbers_and_texts_over_both_protocols_in_turns(http, rpc):
    """A number and a text that are alike are two sequences; which protocol a request takes is all the same."""
    random = np.random.default_rng(0)
    ids = [1, "1", 2**64 - 1]
    alone = {name: Alone(lstm(), *LSTM) for name in ids}
    for step in range(6):
        for name in ids:
            feed, said = sound(random), part(name, start=step == 0, end=step == 5)
            got = http.run("lstm", feed, parameters={"binary_data_output": True, **said}) if step % 2 else rpc.run("lstm", feed, **said)
            assert list(got) == ["output"]
            np.testing.assert_allclose(got["output"], alone[name].run(feed)[0], rtol=1e-5, atol=1e-6)
    for name in ids:
        status, why = refused(http, "lstm", sound(random), part(name))
        assert (status, "is not open: begin it with sequence_start" in why) == (400, True), why
    with pytest.raises(grpc.RpcError) as caught:
        rpc.run("lstm", sound(random), **part("1"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_cache_grows_from_a_prompt_on(http):
    random = np.random.default_rng(1)
    alone = Alone(decoder(), {name: name.replace("past_key_values", "present") for name in CACHE}, CACHE)
    for step, count in enumerate((5, 1, 1, 1)):
        feed = {"input_ids": random.integers(0, 50, (1, count))}
        got = http.run("decoder", feed, parameters={"binary_data_output": True, **part("words", start=step == 0)})
        np.testing.assert_allclose(got["logits"], alone.run(feed)[0], rtol=1e-5, atol=1e-5)


def test_what_an_encoder_made_comes_with_the_first_request_and_stays(http):
    random = np.random.default_rng(7)
    heard = {
        f"past_key_values.0.encoder.{kind}": random.standard_normal((1, HEADS, 7, SIZE)).astype(np.float32) for kind in ("key", "value")
    }
    assert {spec["name"] for spec in http.json("GET", "/v2/models/listener")[1]["inputs"]} == {"input_ids", *heard}
    alone = Alone(listener(), {name: name.replace("past_key_values", "present") for name in CACHE} | {n: n for n in heard}, CACHE | heard)
    for step, count in enumerate((5, 1, 1, 1)):
        feed = {"input_ids": random.integers(0, 50, (1, count))}
        said = {"binary_data_output": True, **part("heard", start=step == 0)}
        got = http.run("listener", feed if step in (1, 3) else feed | heard, parameters=said)
        np.testing.assert_allclose(got["logits"], alone.run(feed)[0], rtol=1e-5, atol=1e-5)
    others = {name: array + 1 for name, array in heard.items()}
    status, why = refused(http, "listener", {"input_ids": np.array([[3]]), **others}, part("heard"))
    assert (status, "expected what its first request had" in why) == (400, True), why
    assert refused(http, "listener", {"input_ids": np.array([[3]])}, part("mute", start=True))[0] == 400


def test_shapes_that_a_file_leaves_open_are_told(http):
    feed = sound(np.random.default_rng(6))
    for said in (part(1, start=True), part(1)):
        got, want = (http.run(model, feed, parameters=said)["output"] for model in ("unnamed", "lstm"))
        np.testing.assert_array_equal(got, want)


def test_what_is_state_is_neither_an_input_nor_an_output(http, rpc):
    said = http.json("GET", "/v2/models/lstm")[1]
    assert ([spec["name"] for spec in said["inputs"]], [spec["name"] for spec in said["outputs"]]) == (["input"], ["output"])
    assert http.json("GET", "/v2/models/lstm/config")[1]["sequence_batching"] == {"max_sequence_idle_microseconds": 600_000_000}
    assert rpc.ask("ModelConfig", name="lstm").config.sequence_batching.max_sequence_idle_microseconds == 600_000_000
    assert "sequence_batching" not in http.json("GET", "/v2/models/plain/config")[1]
    assert len(http.json("GET", "/v2/models/plain")[1]["inputs"]) == 3
    feed = {**sound(np.random.default_rng(2)), "h": LSTM[1]["h"]}
    assert refused(http, "lstm", feed, part(5, start=True))[0] == 400
    assert refused(http, "lstm", sound(np.random.default_rng(2)), part(5))[0] == 400  # a first request that failed has begun nothing


def test_a_start_begins_anew_and_a_request_without_sequence_is_refused(http):
    random = np.random.default_rng(3)
    feed = sound(random)
    first = http.run("lstm", feed, parameters=part(7, start=True))["output"]
    second = http.run("lstm", feed, parameters=part(7))["output"]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(http.run("lstm", feed, parameters=part(7, start=True))["output"], first)
    np.testing.assert_array_equal(http.run("lstm", feed, parameters=part(7, end=True))["output"], second)
    np.testing.assert_array_equal(http.run("lstm", feed, parameters=part(8, start=True, end=True))["output"], first)
    for sequence in (0, ""):
        status, why = refused(http, "lstm", feed, {"sequence_id": sequence})
        assert (status, "say which sequence a request is part of" in why) == (400, True)


def test_the_sequence_that_is_idle_for_longest_makes_room(http):
    feed = sound(np.random.default_rng(4))
    for name in "abc":
        http.run("lstm", feed, parameters=part(name, start=True))
    http.run("lstm", feed, parameters=part("a"))
    http.run("lstm", feed, parameters=part("d", start=True))
    for name in "acd":
        http.run("lstm", feed, parameters=part(name))
    status, why = refused(http, "lstm", feed, part("b"))
    assert (status, f"beyond {MOST} that are open (--max-sequences)" in why) == (400, True), why


def test_a_start_that_is_refused_begins_nothing_and_ends_nothing(http):
    """Neither the sequence of its own name, nor the one that was to make room."""
    feed, wrong = sound(np.random.default_rng(4)), {"input": np.zeros((3, 1, WIDTH + 1), np.float32)}
    alone = Alone(lstm(), *LSTM)
    for name in "efg":
        http.run("lstm", feed, parameters=part(name, start=True))
    alone.run(feed)
    for name in "eh":
        assert refused(http, "lstm", wrong, part(name, start=True))[0] == 400
        assert refused(http, "lstm", {"nothing": feed["input"]}, part(name, start=True))[0] == 400
    want = alone.run(feed)[0]
    for name in "efg":
        got = http.run("lstm", feed, parameters={"binary_data_output": True, **part(name, end=True)})["output"]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_requests_of_one_sequence_that_come_together_run_one_after_the_other(stateful):
    """Whatever their order, the sum of their effects is that of as many requests alone."""
    feed, count = sound(np.random.default_rng(5)), 12
    alone = Alone(lstm(), *LSTM)
    want = sorted(float(alone.run(feed)[0][0, 0, 0]) for _ in range(count + 1))
    answers = []

    def run(**said):
        with stateful.http() as http:
            answers.append(float(http.run("lstm", feed, parameters=part("together", **said))["output"][0, 0, 0]))

    run(start=True)
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(sorted(answers), want, rtol=1e-5, atol=1e-6)


async def in_order(model, requests):
    """Begin requests of one sequence before any of them has run, and return their answers, or why there is none."""

    async def answered(feed, said):
        async with model.sequences.turn(part_of(said)) as turn:
            await asyncio.sleep(0)
            return model.run(feed, None, lambda: False, turn)[0]

    return await asyncio.gather(*(answered(*request) for request in requests), return_exceptions=True)


@pytest.mark.parametrize("last", ["start", "end"])
def test_what_was_sent_before_a_sequence_ends_or_begins_anew_is_answered_as_part_of_it(cluster, tmp_path, last):
    """And what was sent after its end is part of none."""
    (tmp_path / "lstm.onnx").write_bytes(lstm())
    state = StateText("auto", {})
    model = ServedModel.load("lstm", "1", tmp_path / "lstm.onnx", cluster.connection, PlanOptions("single"), 60.0, state, MOST)
    random = np.random.default_rng(8)
    requests = [(sound(random), said) for said in (part(9, start=True), part(9), part(9, **{last: True}), part(9))]
    got = asyncio.run(in_order(model, requests))
    for number, ((feed, _), answer) in enumerate(zip(requests, got, strict=True)):
        if number == 0 or (number, last) == (2, "start"):
            alone = Alone(lstm(), *LSTM)
        if (number, last) == (3, "end"):
            assert "is not open: begin it with sequence_start" in str(answer)
        else:
            np.testing.assert_allclose(answer, alone.run(feed)[0], rtol=1e-5, atol=1e-6)


def test_requests_behind_a_start_that_failed_are_part_of_nothing(cluster, tmp_path):
    """What it was to replace goes on."""
    (tmp_path / "lstm.onnx").write_bytes(lstm())
    state = StateText("auto", {})
    model = ServedModel.load("lstm", "1", tmp_path / "lstm.onnx", cluster.connection, PlanOptions("single"), 60.0, state, 1)
    feed, wrong = sound(np.random.default_rng(11)), {"input": np.zeros((3, 1, WIDTH + 1), np.float32)}
    requests = [(feed, part("a", start=True)), (wrong, part("a", start=True)), (feed, part("a"))]

    async def all_of_it():
        got = await in_order(model, requests)
        return [*got, *await in_order(model, [(feed, part("a"))])]

    first, _, behind, last = asyncio.run(all_of_it())
    alone = Alone(lstm(), *LSTM)
    for answer in (first, last):
        np.testing.assert_allclose(answer, alone.run(feed)[0], rtol=1e-5, atol=1e-6)
    assert "is not open: begin it with sequence_start" in str(behind)


def test_sequences_that_have_made_room_are_not_remembered(cluster, tmp_path):
    (tmp_path / "lstm.onnx").write_bytes(lstm())
    model = ServedModel.load("lstm", "1", tmp_path / "lstm.onnx", cluster.connection, PlanOptions("single"), 60.0, StateText("auto", {}), 1)
    feed, before = sound(np.random.default_rng(12)), living_runs()

    async def one_after_the_other():
        for name in "abcd":
            await in_order(model, [(feed, part(name, start=True))])

    asyncio.run(one_after_the_other())
    assert living_runs() == before + 1


def living_runs():
    gc.collect()
    return sum(isinstance(thing, StatefulRuns) for thing in gc.get_objects())


def test_a_sequence_whose_state_is_lost_is_named_as_its_client_names_it(cluster, tmp_path):
    """Its session counts sequences: the number was that of another one."""
    (tmp_path / "lstm.onnx").write_bytes(lstm())
    model = ServedModel.load("lstm", "1", tmp_path / "lstm.onnx", cluster.connection, PlanOptions("single"), 60.0, StateText("auto", {}), 1)
    feed = sound(np.random.default_rng(15))

    async def all_of_it():
        await in_order(model, [(feed, part("mine", start=True))])
        cluster.connection.tell(EndSequence(model.sequences._open["mine"].runs._number))
        return await in_order(model, [(feed, part("mine"))])

    (lost,) = asyncio.run(all_of_it())
    assert isinstance(lost, StateLostError)
    assert str(lost) == "sequence 'mine' of model 'lstm': the coordinator does not know it, or not any more; begin it again"


def test_a_last_request_that_was_done_too_late_may_come_again(cluster, tmp_path):
    (tmp_path / "lstm.onnx").write_bytes(lstm())
    model = ServedModel.load("lstm", "1", tmp_path / "lstm.onnx", cluster.connection, PlanOptions("single"), 60.0, StateText("auto", {}), 1)
    alone, feeds = Alone(lstm(), *LSTM), [sound(np.random.default_rng(seed)) for seed in (13, 14)]

    async def all_of_it():
        first = await in_order(model, [(feeds[0], part("a", start=True))])
        with suppress(TimeoutError):
            async with model.sequences.turn(part_of(part("a", end=True))) as turn:
                model.run(feeds[1], None, lambda: False, turn)
                raise TimeoutError
        return [*first, *await in_order(model, [(feeds[1], part("a", end=True))])]

    for feed, answer in zip(feeds, asyncio.run(all_of_it()), strict=True):
        np.testing.assert_allclose(answer, alone.run(feed)[0], rtol=1e-5, atol=1e-6)


def test_a_request_that_was_given_up_is_no_part_of_its_sequence(http):
    """Its deadline passes while it runs, or when its answer is there already; the last one of a sequence may come again, too."""
    random = np.random.default_rng(10)
    for _ in range(10):
        alone, feeds = Alone(lstm(), *LSTM), [sound(random) for _ in range(3)]
        for feed, said in zip(feeds, (part(10, start=True), part(10), part(10, end=True)), strict=True):
            if not said["sequence_start"]:
                assert refused(http, "lstm", feed, {**said, "timeout": 1})[0] == 504
            got = http.run("lstm", feed, parameters={"binary_data_output": True, **said})["output"]
            np.testing.assert_allclose(got, alone.run(feed)[0], rtol=1e-5, atol=1e-6)

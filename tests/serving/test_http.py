"""The protocol over HTTP, from a real process on a real cluster."""

import gzip
import json
import zlib

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest

import bbgrap
from bbgrap.serving.http_bodies import accepted_encoding
from tests.serving.clients import JSON_LENGTH, binary_body, json_body, outputs_of

pytestmark = pytest.mark.cluster

ROWS = np.linspace(0, 0.9, 12, dtype=np.float32).reshape(3, 4)


def every_type():
    numbers = [0, 1, 100]
    feed = {
        f"in_{name}": np.array(numbers, name.lower()) for name in ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
    }
    feed["in_UINT64"][2] = 2**64 - 1
    feed["in_INT8"][2] = -128
    feed |= {
        f"in_{name}": np.array([0.5, -1.25, 3], kind) for name, kind in (("FP16", "float16"), ("FP32", "float32"), ("FP64", "float64"))
    }
    return feed | {"in_BOOL": np.array([True, False, True]), "in_BYTES": np.array(["", "äöü", "line\nline"], object)}


def bfloat16():
    return {"in_BF16": np.array([0.5, -1.25, 3], ml_dtypes.bfloat16), "in_FP32": np.array([1, 2, 3], np.float32)}


def same(got, want):
    return got.dtype == want.dtype and got.shape == want.shape and got.tolist() == want.tolist()


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"),
        ("GZIP;q=0.1, deflate", "gzip"),
        ("gzip;q=0", ""),
        ("gzip; q=0.0", ""),
        ("gzip ;Q=0.000, deflate;q=0.001", "deflate"),
        ("br, x-gzip", ""),
    ],
)
def test_answers_are_compressed_as_is_accepted(accept, encoding):
    assert accepted_encoding(accept) == encoding


def test_questions_are_answered(http):
    assert http.json("GET", "/v2")[1]["name"] == "bbgrap"
    assert http.json("GET", "/v2/health/live") == (200, {"live": True})
    assert http.json("GET", "/v2/health/ready") == (200, {"live": True, "ready": True})
    assert http.json("GET", "/v2/models/rows/ready") == (200, {"name": "rows", "ready": True})
    status, said = http.json("GET", "/v2/models/rows/versions/1")
    assert (status, said["versions"], said["inputs"]) == (200, ["1"], [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}])
    assert [output["name"] for output in said["outputs"]] == ["y", "z"]
    config = http.json("GET", "/v2/models/rows/config")[1]
    assert (config["max_batch_size"], config["input"]) == (0, [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}])
    assert {model["name"] for model in http.json("GET", "/v2/models/stats")[1]["model_stats"]} >= {"rows", "types", "triton"}
    assert [item["shape"] for item in http.json("GET", "/v2/models/bfloat16")[1]["inputs"]] == [[3], [3]]
    for path, method in (
        ("/v2/nothing", "GET"),
        ("/v2/health", "GET"),
        ("/", "POST"),
        ("/v2/models/rows/infer", "GET"),
        ("/v2/health/live", "POST"),
    ):
        status, said = http.json(method, path)
        assert status in (404, 405)
        assert path in said["error"]


@pytest.mark.parametrize("how", ["binary", "json", "gzip", "deflate", "answer gzip", "answer deflate"])
def test_answers_are_the_sessions_to_the_bit(http, cluster, models, how):
    x = np.random.default_rng(1).random((300, 4), np.float32) * 0.9
    session = bbgrap.InferenceSession(models / "rows.onnx", cluster=cluster.connection, planner="single")
    want = dict(zip(("y", "z"), session.run(None, {"x": x}), strict=True))
    body, headers = (json_body({"x": x}), {}) if how == "json" else binary_body({"x": x})
    if how in ("gzip", "deflate"):
        body, headers = {"gzip": gzip.compress, "deflate": zlib.compress}[how](body), {**headers, "Content-Encoding": how}
    if how.startswith("answer"):
        headers = {**headers, "Accept-Encoding": how.removeprefix("answer ")}
    status, content = http.ask("POST", "/v2/models/rows/infer", body, headers)
    assert status == 200, content
    if how.startswith("answer"):
        assert http.headers["content-encoding"] == how.removeprefix("answer ")
        content = zlib.decompress(content, 47)
    got = outputs_of(content, http.headers)
    assert got.keys() == want.keys()
    assert all(got[name].tobytes() == want[name].tobytes() for name in want)
    plain = ort.InferenceSession(models / "rows.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(got["y"], plain[0], rtol=1e-5)


@pytest.mark.parametrize(("model", "make"), [("types", every_type), ("bfloat16", bfloat16)])
def test_every_type_goes_both_ways(http, model, make):
    feed = make()
    names = [name.replace("in_", "out_") for name in feed]
    outputs = [{"name": name, "parameters": {"binary_data": number % 2 == 0}} for number, name in enumerate(names)]
    answers = [http.run(model, feed), http.run(model, feed, outputs=outputs, parameters={})]
    status, content = http.ask("POST", f"/v2/models/{model}/infer", json_body(feed))
    assert status == 200, content
    answers.append(outputs_of(content, http.headers))
    for answer in answers:
        assert answer.keys() == set(names)
        assert [name for name in feed if not same(answer[name.replace("in_", "out_")], feed[name])] == []


def test_only_the_outputs_that_were_asked_for_come(http):
    body, headers = binary_body({"x": ROWS}, outputs=[{"name": "z"}], id="mine")
    status, content = http.ask("POST", "/v2/models/rows/versions/1/infer", body, headers)
    length = int(http.headers["inference-header-content-length"])
    said = json.loads(content[:length])
    assert (status, said["id"], said["model_name"], said["model_version"]) == (200, "mine", "rows", "1")
    assert outputs_of(content, http.headers).keys() == {"z"}
    answer = http.ask("POST", "/v2/models/rows/infer", json_body({"x": ROWS}, outputs=[{"name": "z"}]))[1]
    assert json.loads(answer)["outputs"][0]["data"] == ROWS.max(1).tolist()


def x_input(**more):
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 0], **more}]}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, "inputs: expected 'x' float[N, 4], got none"),
        ([], "expected a JSON object, got a list"),
        ({"inputs": [3]}, "inputs: expected a list of objects"),
        ({"inputs": [{"datatype": "FP32"}]}, "each needs a name"),
        (x_input(name="q"), "inputs: expected 'x' float[N, 4], got 'q'"),
        (x_input(shape=[4]), "input 'x': expected float[N, 4] with N = 4, got float32[4]"),
        (x_input(datatype="FP64"), "input 'x': expected float[N, 4], got float64[1, 4]"),
        (x_input(datatype="FP31"), "datatype: expected one of BOOL"),
        (x_input(shape=[1, -4]), "shape: expected a list of sizes"),
        (x_input(shape=[2, 4]), "FP32[2, 4] has 8 elements, got 4"),
        (x_input(shape=[0, 1 << 60], data=[]), "input 'x'"),
        (x_input(data=[[0, 0], [0]]), "data:"),
        (x_input(data=["a", "b", "c", "d"]), "expected numbers of FP32"),
        (x_input(data=[1e300, 0, 0, 0]), "too large for FP32"),
        (x_input(datatype="INT8", data=[300, 0, 0, 0]), "expected numbers of INT8, got 0 to 300"),
        (x_input(datatype="INT8", data=[0.5, 0, 0, 0]), "expected numbers of INT8"),
        (x_input(datatype="BYTES", data=[1, 2, 3, 4]), "expected texts"),
        (x_input(data=None), "expected data as a list, or binary_data_size"),
        (x_input(data=None, parameters={"binary_data_size": 16}), "binary_data_size: expected at most the 0 bytes"),
        (x_input(parameters={"shared_memory_region": "r"}), "tensors in shared memory are not taken"),
        ({"inputs": x_input()["inputs"] * 2}, "a name is there twice"),
        ({**x_input(), "outputs": [{"name": "q"}]}, "output 'q': the model has y, z"),
        ({**x_input(), "outputs": [{"name": "y", "parameters": {"classification": 2}}]}, "classes are not counted"),
        ({**x_input(), "parameters": {"sequence_id": 4}}, "is served without state (--state)"),
        ({**x_input(), "parameters": {"sequence_id": -4}}, "expected a number below 2^64, or a text of at most 128 letters"),
        ({**x_input(), "parameters": {"sequence_id": "s" * 129}}, "expected a number below 2^64, or a text of at most 128 letters"),
        ({**x_input(), "parameters": {"sequence_id": True}}, "expected a number below 2^64, or a text of at most 128 letters"),
        ({**x_input(), "parameters": {"sequence_id": 4, "sequence_start": 1}}, "expected true or false"),
        ({**x_input(), "parameters": {"sequence_end": True}}, "of which sequence? 'sequence_id' is missing"),
        ({**x_input(), "parameters": {"timeout": -1}}, "expected whole microseconds"),
        ({**x_input(), "id": 5}, "id: expected a text"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(http, said, expected):
    status, answer = http.json("POST", "/v2/models/rows/infer", said)
    assert (status, expected in answer["error"]) == (400, True), answer
    assert "np." not in answer["error"], "clients are told what is wrong, not how to mend it in Python"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({JSON_LENGTH: "12x"}, b"{}", 400),
        ({JSON_LENGTH: "3"}, b"{}", 400),
        ({JSON_LENGTH: "2"}, b"{}more", 400),
        ({}, b"[" * 100_000, 400),
        ({}, b'{"inputs": \xff}', 400),
        ({"Content-Encoding": "gzip"}, b"no gzip", 400),
        ({"Content-Encoding": "gzip"}, gzip.compress(b"{}", mtime=0)[:-4], 400),
        ({"Content-Encoding": "gzip"}, gzip.compress(b" " * (1 << 21), mtime=0), 413),
        ({"Content-Encoding": "br"}, b"{}", 415),
        ({}, b" " * (1 << 20) + b" ", 413),
    ],
)
def test_a_body_that_is_none_is_refused(http, headers, body, status):
    got, answer = http.ask("POST", "/v2/models/rows/infer", body, headers)
    assert (got, "error" in json.loads(answer)) == (status, True), answer
    assert http.run("rows", {"x": ROWS})["y"].shape == (3, 4)


@pytest.mark.parametrize("path", ["index", "models/rows/unload"])
def test_questions_are_short(http, path):
    """They have no place, so any number of them was read at once, each as long as `--max-body`."""
    status, answer = http.ask("POST", f"/v2/repository/{path}", b" " * 100_000 + b"{}")
    assert (status, json.loads(answer)) == (413, {"error": "body: expected at most 65536 bytes"})


def test_a_kernel_that_fails_is_an_error_of_the_request(http):
    body, headers = binary_body({"x": ROWS + 5000})
    status, answer = http.ask("POST", "/v2/models/rows/infer", body, headers)
    assert status == 500
    assert "out of data bounds" in json.loads(answer)["error"]
    assert http.run("rows", {"x": ROWS})["y"].shape == (3, 4)


@pytest.mark.parametrize("path", ["nix", "..%2Frows", "rows.onnx", "%2Fetc%2Fpasswd", "rows/versions/2", "sequence", "%00", "broken"])
def test_other_names_are_unknown(http, path):
    status, answer = http.ask("POST", f"/v2/models/{path}/infer", b"{}")
    assert (status, "error" in json.loads(answer)) == (404, True)


def test_statistics_count(http):
    def counts():
        return http.json("GET", "/v2/models/triton/stats")[1]["model_stats"][0]

    before = counts()
    for _ in range(3):
        http.run("triton", {"x": ROWS})
    http.ask("POST", "/v2/models/triton/infer", json_body({"x": ROWS[0]}))
    after = counts()
    assert after["inference_count"] == after["inference_stats"]["success"]["count"] == before["inference_count"] + 3
    assert after["inference_stats"]["fail"]["count"] == before["inference_stats"]["fail"]["count"] + 1
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]

"""Every endpoint by `tritonclient.grpc`; arguments: HOST:PORT, and a folder with x.npy, y.npy and z.npy."""

import queue
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

url, folder = sys.argv[1], Path(sys.argv[2])
x, y, z = (np.load(folder / f"{name}.npy") for name in "xyz")
client = triton.InferenceServerClient(url)

assert client.is_server_live()
assert client.is_server_ready()
assert client.is_model_ready("rows")
assert client.is_model_ready("rows", "1")
assert client.get_server_metadata().name == "bbgrap"
assert list(client.get_model_metadata("rows", "1").inputs[0].shape) == [-1, 4]
config = client.get_model_config("types").config
names = {
    spec.name: type(config).DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number[spec.data_type].name for spec in config.input
}
assert (config.platform, config.backend, config.max_batch_size) == ("onnxruntime_onnx", "onnxruntime", 0)
assert (names["in_FP32"], names["in_BYTES"], list(config.output[0].dims)) == ("TYPE_FP32", "TYPE_STRING", [3])
assert {model.name for model in client.get_model_repository_index().models} >= {"rows", "types"}
client.unload_model("triton")
assert not client.is_model_ready("triton")
client.load_model("triton")
assert client.is_model_ready("triton")


def given(array):
    made = triton.InferInput("x", list(array.shape), "FP32")
    made.set_data_from_numpy(array)
    return [made]


def check(answer, names="yz"):
    for name, want in (("y", y), ("z", z)):
        got = answer.as_numpy(name)
        if name in names:
            assert got.dtype == want.dtype
            assert got.tobytes() == want.tobytes()
        else:
            assert got is None


check(client.infer("rows", given(x)))
check(client.infer("rows", given(x), request_id="mine", client_timeout=30))
check(client.infer("rows", given(x), outputs=[triton.InferRequestedOutput("z")]), "z")
check(client.infer("rows", given(x), timeout=30_000_000))
for way in ("gzip", "deflate"):
    check(client.infer("rows", given(x), compression_algorithm=way))
came = queue.Queue()
client.async_infer("rows", given(x), lambda result, error: came.put((result, error)))
answer, error = came.get(timeout=30)
assert error is None
check(answer)

texts = np.array(["", "äöü", "end"], object)
inputs = []
for spec in client.get_model_metadata("types").inputs:
    made = triton.InferInput(spec.name, [3], spec.datatype)
    made.set_data_from_numpy(texts if spec.datatype == "BYTES" else np.array([0, 1, 1], triton_to_np_dtype(spec.datatype)))
    inputs.append(made)
answer = client.infer("types", inputs)
assert [text.decode() for text in answer.as_numpy("out_BYTES")] == texts.tolist()
assert answer.as_numpy("out_FP16").tolist() == [0, 1, 1]
assert answer.as_numpy("out_BOOL").tolist() == [False, True, True]

sound = np.linspace(-1, 1, 36, dtype=np.float32).reshape(3, 1, 12)


def step(sequence, **flags):
    made = triton.InferInput("input", [3, 1, 12], "FP32")
    made.set_data_from_numpy(sound)
    return client.infer("lstm", [made], sequence_id=sequence, **flags).as_numpy("output").item()


alone = [step(9, sequence_start=True, sequence_end=True), step(9, sequence_start=True), step(9), step(9, sequence_end=True)]
assert alone[0] == alone[1]
assert len(set(alone)) == 3
turns = [[step(name, sequence_start=n == 0, sequence_end=n == 2) for name in (5, "five")] for n in range(3)]
assert turns == [[value, value] for value in alone[1:]]
fault = ""
try:
    step(5)
except InferenceServerException as error:
    fault = error.message()
assert "sequence 5 of model 'lstm' is not open" in fault

fault = ""
try:
    client.infer("rows", given(x.reshape(-1)))
except InferenceServerException as error:
    fault = error.message()
assert "expected float[N, 4]" in fault
(stats,) = client.get_inference_statistics("rows").model_stats
assert stats.inference_stats.success.count >= 7
assert len(client.get_inference_statistics().model_stats) > 1

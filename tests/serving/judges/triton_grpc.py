"""Every endpoint by `tritonclient.grpc`; arguments: HOST:PORT, and a folder with x.npy, y.npy and z.npy."""

import queue
import sys
from pathlib import Path

import tritonclient.grpc as triton
from triton_alike import Asking

asking = Asking(triton, sys.argv[1], Path(sys.argv[2]))
client, x, given, check = asking.client, asking.x, asking.given, asking.check

asking.ask_for_health_and_loading()
assert client.get_server_metadata().name == "bbgrap"
assert list(client.get_model_metadata("rows", "1").inputs[0].shape) == [-1, 4]
config = client.get_model_config("types").config
names = {
    spec.name: type(config).DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number[spec.data_type].name for spec in config.input
}
assert (config.platform, config.backend, config.max_batch_size) == ("onnxruntime_onnx", "onnxruntime", 0)
assert (names["in_FP32"], names["in_BYTES"], list(config.output[0].dims)) == ("TYPE_FP32", "TYPE_STRING", [3])
assert {model.name for model in client.get_model_repository_index().models} >= {"rows", "types"}

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

asking.ask_for_all_types({spec.name: spec.datatype for spec in client.get_model_metadata("types").inputs})
asking.ask_in_sequences()
asking.ask_wrongly()
(stats,) = client.get_inference_statistics("rows").model_stats
assert stats.inference_stats.success.count >= 7
assert len(client.get_inference_statistics().model_stats) > 1

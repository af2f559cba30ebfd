"""Every endpoint by `tritonclient.http`; arguments: HOST:PORT, and a folder with x.npy, y.npy and z.npy."""

import sys
from pathlib import Path

import tritonclient.http as triton
from triton_alike import Asking

asking = Asking(triton, sys.argv[1], Path(sys.argv[2]))
client, x, given, check = asking.client, asking.x, asking.given, asking.check

asking.ask_for_health_and_loading()
assert client.get_server_metadata()["name"] == "bbgrap"
assert client.get_model_metadata("rows", "1")["inputs"][0]["shape"] == [-1, 4]
assert client.get_model_config("rows")["max_batch_size"] == 0
assert {model["name"] for model in client.get_model_repository_index()} >= {"rows", "types"}

check(client.infer("rows", given(x)))
check(client.infer("rows", given(x, binary_data=False), request_id="mine"))
check(client.infer("rows", given(x), outputs=[triton.InferRequestedOutput("z", binary_data=True)]), "z")
check(client.infer("rows", given(x), outputs=[triton.InferRequestedOutput("y", binary_data=False)], timeout=30_000_000), "y")
for way in ("gzip", "deflate"):
    check(client.infer("rows", given(x), request_compression_algorithm=way, response_compression_algorithm=way))
check(client.async_infer("rows", given(x)).get_result())

asking.ask_for_all_types({spec["name"]: spec["datatype"] for spec in client.get_model_metadata("types")["inputs"]})
asking.ask_in_sequences()
asking.ask_wrongly()
(stats,) = client.get_inference_statistics("rows")["model_stats"]
assert stats["inference_stats"]["success"]["count"] >= 7
assert len(client.get_inference_statistics()["model_stats"]) > 1

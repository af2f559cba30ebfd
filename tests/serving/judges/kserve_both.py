"""Every endpoint of kserve's clients, HTTP and gRPC; arguments: HOST:PORT of each, and a folder with x.npy, y.npy and z.npy."""

import asyncio
import sys
from pathlib import Path

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

folder = Path(sys.argv[3])
x, y, z = (np.load(folder / f"{name}.npy") for name in "xyz")


def request(*, binary: bool, outputs: bool = False) -> InferRequest:
    made = InferInput("x", list(x.shape), "FP32")
    made.set_data_from_numpy(x, binary_data=binary)
    wanted = [RequestedOutput("y", parameters={"binary_data": True}), RequestedOutput("z", parameters={"binary_data": False})]
    return InferRequest("rows", [made], request_id="mine", request_outputs=wanted if outputs else None)


def check(answer) -> None:
    assert answer.id == "mine"
    outputs = {output.name: output.as_numpy() for output in answer.outputs}
    assert outputs["y"].tobytes() == y.tobytes()
    assert outputs["z"].tobytes() == z.tobytes()


async def over_http(url: str) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        base = f"http://{url}"
        assert await client.is_server_live(base)
        assert await client.is_server_ready(base)
        assert await client.is_model_ready(base, "rows")
        for binary, outputs in ((False, False), (True, False), (True, True)):
            check(await client.infer(base, request(binary=binary, outputs=outputs), model_name="rows"))


async def over_grpc(url: str) -> None:
    async with InferenceGRPCClient(url) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("rows")
        for binary in (False, True):
            check(await client.infer(request(binary=binary)))


asyncio.run(over_http(sys.argv[1]))
asyncio.run(over_grpc(sys.argv[2]))

"""The protocol's messages for gRPC, `inference.GRPCInferenceService`, as descriptors that are made here instead of by protoc.

Field numbers are those of the published `grpc_service.proto` and `model_config.proto`; of the latter only what is told here is declared.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_Field = descriptor_pb2.FieldDescriptorProto

_TENSOR = "name:string=1 datatype:string=2 shape:int64*=3"
_NAMED = "name:string=1 version:string=2"

_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:bool=1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:bool=1",
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": "ready:bool=1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name:string=1 version:string=2 extensions:string*=3",
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "ModelMetadataResponse": "name:string=1 versions:string*=2 platform:string=3"
    " inputs:ModelMetadataResponse.TensorMetadata*=4 outputs:ModelMetadataResponse.TensorMetadata*=5",
    "InferParameter": "bool_param:bool?=1 int64_param:int64?=2 string_param:string?=3 double_param:double?=4 uint64_param:uint64?=5",
    "InferTensorContents": "bool_contents:bool*=1 int_contents:int32*=2 int64_contents:int64*=3 uint_contents:uint32*=4"
    " uint64_contents:uint64*=5 fp32_contents:float*=6 fp64_contents:double*=7 bytes_contents:bytes*=8",
    "ModelInferRequest.InferInputTensor": f"{_TENSOR} parameters:InferParameter%=4 contents:InferTensorContents=5",
    "ModelInferRequest.InferRequestedOutputTensor": "name:string=1 parameters:InferParameter%=2",
    "ModelInferRequest": "model_name:string=1 model_version:string=2 id:string=3 parameters:InferParameter%=4"
    " inputs:ModelInferRequest.InferInputTensor*=5 outputs:ModelInferRequest.InferRequestedOutputTensor*=6 raw_input_contents:bytes*=7",
    "ModelInferResponse.InferOutputTensor": f"{_TENSOR} parameters:InferParameter%=4 contents:InferTensorContents=5",
    "ModelInferResponse": "model_name:string=1 model_version:string=2 id:string=3 parameters:InferParameter%=4"
    " outputs:ModelInferResponse.InferOutputTensor*=5 raw_output_contents:bytes*=6",
    "ModelInput": "name:string=1 data_type:DataType=2 dims:int64*=4",
    "ModelOutput": "name:string=1 data_type:DataType=2 dims:int64*=3",
    "ModelSequenceBatching": "max_sequence_idle_microseconds:uint64=1",
    "ModelConfig": "name:string=1 platform:string=2 backend:string=17 max_batch_size:int32=4 input:ModelInput*=5 output:ModelOutput*=6"
    " sequence_batching:ModelSequenceBatching=13",
    "ModelConfigRequest": _NAMED,
    "ModelConfigResponse": "config:ModelConfig=1",
    "ModelStatisticsRequest": _NAMED,
    "StatisticDuration": "count:uint64=1 ns:uint64=2",
    "InferStatistics": "success:StatisticDuration=1 fail:StatisticDuration=2 queue:StatisticDuration=3"
    " compute_input:StatisticDuration=4 compute_infer:StatisticDuration=5 compute_output:StatisticDuration=6"
    " cache_hit:StatisticDuration=7 cache_miss:StatisticDuration=8",
    "InferBatchStatistics": "batch_size:uint64=1 compute_input:StatisticDuration=2 compute_infer:StatisticDuration=3"
    " compute_output:StatisticDuration=4",
    "ModelStatistics": "name:string=1 version:string=2 last_inference:uint64=3 inference_count:uint64=4 execution_count:uint64=5"
    " inference_stats:InferStatistics=6 batch_stats:InferBatchStatistics*=7",
    "ModelStatisticsResponse": "model_stats:ModelStatistics*=1",
    "ModelRepositoryParameter": "bool_param:bool?=1 int64_param:int64?=2 string_param:string?=3 bytes_param:bytes?=4",
    "RepositoryIndexRequest": "repository_name:string=1 ready:bool=2",
    "RepositoryIndexResponse.ModelIndex": "name:string=1 version:string=2 state:string=3 reason:string=4",
    "RepositoryIndexResponse": "models:RepositoryIndexResponse.ModelIndex*=1",
    "RepositoryModelLoadRequest": "repository_name:string=1 model_name:string=2 parameters:ModelRepositoryParameter%=3",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "repository_name:string=1 model_name:string=2 parameters:ModelRepositoryParameter%=3",
    "RepositoryModelUnloadResponse": "",
}
"""`field:type=number`; `*` many, `%` a map from texts, `?` one of those that are marked so."""

_DATATYPES = "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16"
"""Of configurations, by their numbers."""


def _make_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="bbgrap/open_inference.proto", package=PACKAGE, syntax="proto3")
    datatypes = file.enum_type.add(name="DataType")
    for number, name in enumerate(_DATATYPES.split()):
        datatypes.value.add(name=f"TYPE_{name}", number=number)
    outer: dict[str, Any] = {}
    for path in sorted(_MESSAGES, key=lambda path: path.count(".")):
        parent, _, name = path.rpartition(".")
        outer[path] = outer[parent].nested_type.add(name=name) if parent else file.message_type.add(name=name)
    for path, fields in _MESSAGES.items():
        for text in fields.split():
            _add_field(outer[path], path, text)
    return file


def _add_field(message: Any, path: str, text: str) -> None:  # noqa: ANN401 - protobuf ships no types
    name, _, rest = text.partition(":")
    kind, _, number = rest.partition("=")
    plain, mark = (kind[:-1], kind[-1]) if kind[-1] in "*%?" else (kind, "")
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_REPEATED if mark in ("*", "%") else _Field.LABEL_OPTIONAL)
    if mark == "%":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, path, "key:string=1")
        _add_field(entry, path, f"value:{plain}=2")
        plain = f"{path}.{entry.name}"
    if mark == "?":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    scalar = f"TYPE_{plain.upper()}"
    if scalar in _Field.Type.keys():  # noqa: SIM118 - a wrapper of protobuf's, no mapping
        field.type = _Field.Type.Value(scalar)
    else:
        field.type = _Field.TYPE_ENUM if plain == "DataType" else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{plain}"


_POOL = descriptor_pool.DescriptorPool()
"""Of our own: other libraries of a process may have the published file in the default one."""
_POOL.Add(_make_file())


def message(name: str) -> Any:  # noqa: ANN401 - protobuf ships no types
    """Return the class of a message."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))

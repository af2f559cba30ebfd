"""The client: a connection to a coordinator, and `InferenceSession` with onnxruntime's surface over it."""

from bbgrap.session.connection import Connection, connect
from bbgrap.session.inference import InferenceSession

__all__ = ["Connection", "InferenceSession", "connect"]

import importlib

import pytest


@pytest.fixture(scope="session")
def backend_tests() -> None:
    """The ONNX project makes its tests when they are imported, which takes five seconds: the files that use them share a process."""
    importlib.import_module("onnx.backend.test")

"""The thin shell around ZeroMQ: control connections, the data plane, and an in-process data plane for tests."""

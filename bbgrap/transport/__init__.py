"""The thin shell around the network: control connections over ZeroMQ, and the data plane over TCP."""

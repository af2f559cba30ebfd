"""The thin shell around the network: control connections over ZeroMQ, the data plane over TCP, and a fake one within a process."""

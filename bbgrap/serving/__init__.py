"""Models for clients of the Open Inference Protocol, over HTTP and gRPC: a client of the coordinator in a process of its own."""

"""Processes that share no memory with others of their machine: all that they say goes over the network."""

import socket

del socket.SO_PEERCRED  # without it nobody knows whose process is at the other end of a local socket

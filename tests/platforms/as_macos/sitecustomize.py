"""Python as on macOS, as far as bbgrap is concerned: loaded by every process that has this folder in PYTHONPATH."""

import fcntl
import os
import socket

for name in ("memfd_create", "sched_getaffinity", "sched_setaffinity"):
    delattr(os, name)
for name in ("SO_PEERCRED", "TCP_INFO"):
    delattr(socket, name)

for name in [name for name in vars(fcntl) if "SEAL" in name]:
    delattr(fcntl, name)

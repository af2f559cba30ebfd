"""What a coordinator is told when it is started."""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.protocol.addresses import place_of


@dataclass(frozen=True, slots=True)
class Settings:
    """What a coordinator is told.

    Beyond `max_waiting` requests that wait for a plan, or `max_waiting_bytes` of inputs, or what is left of either for others, a client is
    refused as busy.
    """

    version: str
    data_address: str
    first_epoch: int = 1
    max_waiting: int = 256
    max_waiting_bytes: int = 1 << 30
    verify_fraction: float = 0.0
    """The part of the requests that runs a second time, on other nodes; 0 to 1."""
    verify_key: bytes = b""
    """What decides which ones: who does not know it cannot foresee them. At most 64 bytes."""
    fingerprint: str = ""
    incarnation: int = 0
    """Which start of a coordinator this is."""
    started: float = 0.0
    """When, in seconds since 1970."""
    onnxruntime: str = ""
    """The version that plans are made with: what agents load was written by it. Unknown: ""."""

    @property
    def place(self) -> str:
        """Where the coordinator's data plane is, and what it shows there."""
        return place_of(self.data_address, self.fingerprint)

"""How an agent gets a key of its own: with a token at its first contact, and from then on with that key.

    token ── Enrol(name, own key) ──► coordinator      its answer: Enrolled, with a certificate for the data plane
    own key ── Join ... ──►                            kept in a file, so that this node can be taken back alone

Laws: a secret key never leaves this machine; what a token opened is kept only after the coordinator has said so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq

from bbgrap.control.agent import FIRST_SILENCE_S
from bbgrap.control.to_coordinator import LONG_ONES_LOST
from bbgrap.errors import AccessError, ExecutionError
from bbgrap.protocol.agent_directions import FROM_AGENT, TO_AGENT
from bbgrap.protocol.key_messages import Enrol, Enrolled
from bbgrap.protocol.messages import Refused
from bbgrap.protocol.tokens import KEY_BYTES
from bbgrap.transport.certificates import make_request
from bbgrap.transport.control_client import ControlClient, is_listening, unavailable
from bbgrap.transport.credentials import Credentials
from bbgrap.transport.locks import NOBODY, ClientLock, FindLock, KeyPair, no_lock
from bbgrap.transport.strangers import PeerWarnings
from bbgrap.transport.tls import TlsIdentity
from bbgrap.user_folders import settings_folder, write_private

AGAIN_S = 1.0
"""When it is said again that was not answered; a coordinator may be started later than its agents."""
REFUSED_S = 10.0
"""How long a name may be taken: that of a machine that has restarted is, until the coordinator has noticed."""
_POLL_MS = 100

_log = logging.getLogger("bbgrap.agent")


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What an agent joins with, and shows to its peers on the data plane (None: that is plain)."""

    find_lock: FindLock
    identity: TlsIdentity | None


class KeyFile:
    """The key of one node for one coordinator, in a file that only its user can read."""

    def __init__(self, folder: Path, address: str, name: str) -> None:
        """Use a file in a folder, which is made when something is kept."""
        place = address.removeprefix("tcp://").replace("/", "_").replace(":", "_")
        plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        if plain != name:  # "a:b" and "a_b" are two nodes
            plain += f"-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        self._path = folder / f"{place}-{plain}.json"

    def read(self) -> ClientLock | None:
        """Return the keys, None if there are none that can be used."""
        try:
            found = json.loads(self._path.read_text())
            server = bytes.fromhex(found["server"])
            if len(server) != KEY_BYTES:
                raise ValueError(f"expected the coordinator's key of {KEY_BYTES} bytes, got {len(server)}")
            return ClientLock(server, KeyPair.of(bytes.fromhex(found["secret"])), f"this node ('{self._path}')")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError, zmq.ZMQError) as error:
            _log.warning("the key in '%s' cannot be used: %s", self._path, error)
            return None

    def write(self, lock: ClientLock) -> None:
        """Keep the keys; without room for them, the next start takes a token again."""
        content = json.dumps({"server": lock.server.hex(), "secret": lock.own.secret.hex()})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self._path, content)
        except OSError as error:
            _log.warning("this node's key is not kept, and its next start takes a token again: '%s': %s", self._path, error.strerror)


def enrol(address: str, credentials: Credentials, name: str, file: KeyFile) -> Enrolment:
    """Wait for the coordinator, and get a key and a certificate from it.

    Raises:
        AccessError: if it refuses, or there is neither a key nor a token.
        ClusterUnavailableError: if there is neither, and no coordinator either.
    """
    if credentials.is_insecure():
        _ask(address, None, Enrol(name, NOBODY.hex(), b""))
        return Enrolment(no_lock, None)
    tls_key, request = make_request(name)
    own = file.read()
    token = _token(address, credentials, is_needed=own is None)
    if own is not None and (token is None or token.server == own.server):
        try:
            return _enrolled(own, tls_key, _ask(address, own, Enrol(name, own.own.public.hex(), request)))
        except AccessError as error:
            if token is None:
                raise
            _log.info("%s; enrolling again", error)
    assert token is not None, "`credentials.lock` has returned one"
    while True:
        own = ClientLock(token.server, KeyPair.make(), f"node '{name}'")
        try:
            answer = _ask(address, token, Enrol(name, own.own.public.hex(), request))
        except AccessError:
            before, token = token, credentials.lock(address)
            if token is None or token == before:
                raise
            continue  # it was replaced after it had been read
        file.write(own)
        return _enrolled(own, tls_key, answer)


def _token(address: str, credentials: Credentials, *, is_needed: bool) -> ClientLock | None:
    try:
        return credentials.lock(address)
    except AccessError:
        if not is_needed:
            return None
        if not is_listening(address, AGAIN_S):  # a token would not help; a coordinator of this machine's own will need none
            raise unavailable(address, AGAIN_S) from None
        raise


def _enrolled(own: ClientLock, tls_key: bytes, answer: Enrolled) -> Enrolment:
    if not answer.certificate:
        _log.warning("data plane plain, as the coordinator wants: tensors travel unencrypted")
        return Enrolment(lambda: own, None)
    return Enrolment(lambda: own, TlsIdentity(tls_key, answer.certificate, answer.authority))


def _ask(address: str, lock: ClientLock | None, message: Enrol) -> Enrolled:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, ControlClient(context, address, lambda: lock) as control:
        due, gives_up, complains = 0.0, math.inf, time.monotonic() + FIRST_SILENCE_S
        warnings = PeerWarnings(_log)
        while True:
            if time.monotonic() >= complains + control.far_s:
                complains = math.inf
                why = f": it takes connections. It is stopped, or {LONG_ONES_LOST}" if is_listening(address, AGAIN_S) else ""
                _log.info("the coordinator at %s does not answer; trying until it does%s", address, why)
            if time.monotonic() >= due:
                control.send(FROM_AGENT.encode(message))
                due = time.monotonic() + AGAIN_S
            control.socket.poll(_POLL_MS)
            if why := control.refused:
                raise AccessError(why)
            while (frames := control.receive()) is not None:
                match TO_AGENT.decode(frames):
                    case Enrolled() as answer:
                        return answer
                    case Refused(reason, unable=True):
                        gives_up = complains = math.inf
                        warnings.warn(f"the coordinator at {address}", f"it cannot enrol now, and is asked until it can: {reason}")
                    case Refused(reason, retry):
                        complains = math.inf
                        gives_up = min(gives_up, time.monotonic() + REFUSED_S if retry else 0.0)
                        if time.monotonic() >= gives_up:
                            raise ExecutionError(reason) if retry else AccessError(f"the coordinator at {address} refuses: {reason}")
                    case _:
                        pass


def keys_folder() -> Path:
    """Return where agents keep their keys unless they are told."""
    folder = settings_folder()
    with suppress(OSError):
        folder = folder.resolve()
    return folder / "keys"

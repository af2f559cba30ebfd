"""Readers of keys: tokens, key files, notes, requests for certificates, the check of keys, and how frames are cut."""

from __future__ import annotations

import json
import logging
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

from bbgrap_agent.enrolment import KeyFile
from bbgrap_coordinator.key_file import KeyRecord, SavedKeys, Secrets, read_keys, write_keys
from zmq.utils import z85

from bbgrap.errors import AccessError, RemoteProtocolError, UsageError
from bbgrap.protocol.roles import NODE
from bbgrap.protocol.tokens import Role, Token
from bbgrap.transport import frame_pieces, local_tokens
from bbgrap.transport.admission import answer
from bbgrap.transport.certificates import Authority, make_request
from bbgrap.transport.credentials import Credentials
from bbgrap.transport.locks import KeyPair
from tests.fuzzing.readers.control import CUT
from tests.fuzzing.readers.files import FOLDER
from tests.fuzzing.readers.reader import Reader

ADDRESS = "tcp://127.0.0.1:7070"
_PAIR = KeyPair.of(bytes(range(32)))
_TOKEN = Token(Role.ADMIN, _PAIR.public, _PAIR.secret)
_AUTHORITY = Authority.make()
_KNOWN = _PAIR.public
_TOKEN_FILE = FOLDER / "noted.token"
_TOKEN_FILE.write_text(_TOKEN.text)


def _token(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    token = Token.parse(text, "test")
    assert Token.parse(token.text, "test") == token
    assert token.text[7:] not in repr(token)


def _token_file(data: bytes) -> None:
    path = FOLDER / "token"
    path.write_bytes(data)
    assert Credentials(token_file=path).lock(ADDRESS) is not None


def _keys(data: bytes) -> None:
    path = FOLDER / "keys.json"
    path.write_bytes(data)
    try:
        kept = read_keys(path)
    finally:
        assert path.read_bytes() == data, "a file that cannot be understood is never replaced"
    write_keys(path, kept)
    again = read_keys(path)
    assert again.entries == kept.entries
    assert (again.secrets.curve, again.secrets.identity) == (kept.secrets.curve, kept.secrets.identity)


def _kept() -> bytes:
    path = FOLDER / "seed.json"
    entries = [KeyRecord(_PAIR.public.hex(), role.value, f"a {role.value}", 1.5) for role in Role]
    entries.append(KeyRecord(bytes(32).hex(), NODE, "n", 1.5, 2.5, 3.5, "join", "ab" * 32))
    write_keys(path, SavedKeys(Secrets(_PAIR.secret, _AUTHORITY, _AUTHORITY.identity("c")), tuple(entries)))
    return path.read_bytes()


def _agent_key(data: bytes) -> None:
    log = logging.getLogger("bbgrap.agent")
    log.disabled = True  # a key that cannot be used is a line of it
    try:
        _read_agent_key(data)
    finally:
        log.disabled = False


def _read_agent_key(data: bytes) -> None:
    file = KeyFile(FOLDER, ADDRESS, "a")
    next_to = FOLDER / "127.0.0.1_7070-a.json"
    next_to.write_bytes(data)
    lock = file.read()
    if lock is None:
        raise AccessError("no key")
    assert len(lock.server) == len(lock.own.public) == 32


def _note(data: bytes) -> None:
    before, tempfile.tempdir = tempfile.tempdir, str(FOLDER)
    try:
        note = local_tokens.note_token(ADDRESS, FOLDER)
        note.write_bytes(data)
        found = local_tokens.find_token(ADDRESS)
    finally:
        tempfile.tempdir = before
    if found is None:
        raise AccessError("no note")
    assert isinstance(found, Path)
    with suppress(AccessError):
        Credentials().lock(ADDRESS)


def _request(data: bytes) -> None:
    certificate = _AUTHORITY.sign(data, "a")
    assert b"BEGIN CERTIFICATE" in certificate


def _envelope(data: bytes) -> None:
    envelope, *wire = data.split(CUT)
    frames = frame_pieces.join(envelope, wire)
    if not frames:
        raise RemoteProtocolError("no message")
    assert b"".join(bytes(frame) for frame in frames) == b"".join(wire)


def _check(data: bytes) -> None:
    said = answer(data.split(CUT), lambda key: key == _KNOWN)
    assert len(said) == 6
    if said[2] != b"200":
        raise AccessError("unknown")
    assert said[4] == z85.encode(_KNOWN)


def _question(key: bytes) -> bytes:
    return CUT.join([b"1.0", b"1", b"", b"127.0.0.1", b"", b"CURVE", key])


KEYS = [
    Reader("token", _token, [Token(role, _PAIR.public, _PAIR.secret).text.encode() for role in Role], (AccessError,)),
    Reader("token file", _token_file, [_TOKEN.text.encode(), _TOKEN.text.encode() + b"\n"], (AccessError,)),
    Reader("coordinator's keys", _keys, [_kept()], (UsageError,), times=64),
    Reader(
        "agent's key",
        _agent_key,
        [json.dumps({"server": _PAIR.public.hex(), "secret": _PAIR.secret.hex()}).encode()],
        (AccessError,),
        times=64,
    ),
    Reader("note of a token", _note, [str(_TOKEN_FILE).encode()], (AccessError,)),
    Reader("certificate request", _request, [make_request("a")[1], make_request("n" * 60)[1]], (RemoteProtocolError,)),
    Reader(
        "cut frames",
        _envelope,
        [CUT.join([b"", b"a", b"bc"]), CUT.join([struct.pack("<3H", 1, 2, 1), b"a", b"bc", b"d", b"ef"])],
        (RemoteProtocolError,),
    ),
    Reader("check of keys", _check, [_question(_KNOWN), _question(_KNOWN)], (AccessError,)),
]

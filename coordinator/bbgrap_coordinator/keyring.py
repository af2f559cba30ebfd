"""Who may speak to a coordinator, and what each key may say: tokens, the nodes that were enrolled with them, and what was taken back.

    handshake   admits(key)             may it connect?              (from ZeroMQ's thread)
    message     refusal(who, message)   may its role say this?       (every message: an open connection outlasts its key by moments)
    keys        answer(who, message)    enrol, create, list, revoke, rotate; where these change something, it is first
                take(change)            put on the disk, by another thread, and then holds
    time        ended()                 whose connections are to be ended

Laws: whatever changes is on the disk before anybody is told; a secret leaves this process in the answer to who asked for a token only.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import assert_never

from bbgrap.cluster.types import COORDINATOR
from bbgrap.errors import AccessError, BbgrapError, UsageError
from bbgrap.protocol import key_messages
from bbgrap.protocol.client_messages import ClientAnswer, ClientMessage
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import AgentMessage, Join, Refused
from bbgrap.protocol.roles import MAY, NODE, needed_for
from bbgrap.protocol.tokens import Role, Token
from bbgrap.transport.control_server import key_of
from bbgrap.transport.locks import KeyPair, ServerLock
from bbgrap.transport.tls import fingerprint_of
from bbgrap_coordinator.key_file import KeyRecord, SavedKeys, Secrets, read_keys, write_keys
from bbgrap_coordinator.key_refusals import SHUT_OUT, refused_call

LOCAL = "local"
"""The token that the coordinator leaves for commands of its own user on its own machine."""
JOIN = "join"
"""The token that it makes for agents at its first start."""
HELD_S = 30.0
"""How long the name of a node that has just enrolled is kept for it until it speaks. Chosen: its worker starts in seconds, with cold disks
in tens; and one that ended before it spoke, without keeping its key, is away for no longer."""
MAX_ENTRIES = 4096
"""Keys that are kept; of more, one that was taken back is forgotten, else that of a node that is not there, each time the oldest. Such a
node enrols anew, with its token: machines that have another name at each start must not fill the list for ever."""

KeyAnswer = ClientAnswer | key_messages.Enrolled | Refused


@dataclass(frozen=True, slots=True)
class KeyChange:
    """Keys as they shall be: all of them, in their file, and those of the coordinator's own tokens."""

    path: Path
    secrets: Secrets
    entries: Mapping[bytes, KeyRecord]
    token_files: Mapping[Path, str | None]
    """Their texts; None: removed."""

    def write(self) -> None:
        """Put it on the disk; from any thread.

        Raises:
            OSError: if it cannot be written; nothing has changed then.
        """
        texts = {path: text for path, text in self.token_files.items() if text is not None}
        write_keys(self.path, SavedKeys(self.secrets, tuple(self.entries.values())), texts)
        for path in self.token_files.keys() - texts.keys():
            with suppress(OSError):  # what it holds opens nothing any more
                path.unlink(missing_ok=True)


class KeyRing:
    """The keys of a locked coordinator.

    Invariants: `_entries` are those on the disk, by key; names of valid ones differ; `_valid` holds the keys that may connect, and is
    replaced as a whole, for another thread reads it; `_ended` are those that it has lost since somebody asked.
    """

    def __init__(self, path: Path, *, locks_data: bool = True, clock: Callable[[], float] = time.time) -> None:
        """Read the keys in a file, or make them. Without `locks_data` nodes get no certificates: tensors travel unencrypted.

        Raises:
            UsageError: if the file is damaged.
            OSError: if it cannot be written.
        """
        kept = read_keys(path)
        self._path = path
        self._clock = clock
        self._secrets = kept.secrets
        self._pair = KeyPair.of(kept.secrets.curve)
        self._entries = {bytes.fromhex(entry.key): entry for entry in kept.entries}
        self._valid: frozenset[bytes] = frozenset()
        self._ended: list[bytes] = []
        self._authority = kept.secrets.authority if locks_data else None
        self._signed: dict[str, tuple[bytes, bytes]] = {}
        """The latest request and certificate by key. A node that waits says it again, and uses whichever answer comes first."""
        self._silent: dict[str, float] = {}
        """When nodes were enrolled that have not spoken since, by key: they are starting, and have no connection yet."""
        self.data_identity = kept.secrets.identity if locks_data else None
        """What the coordinator shows on the data plane; None if that is plain."""
        self._renew()
        self.is_new = not kept.entries
        """Whether these keys were made just now."""
        self.local = self._kept_token(LOCAL, Role.ADMIN)
        if self.is_new:
            self._make_kept(JOIN, Role.AGENT)

    def token_file(self, name: str) -> Path:
        """Return where the text of one of the coordinator's own tokens is, for its user to read."""
        return self._path.with_name(f"{name}.token")

    @property
    def lock(self) -> ServerLock:
        """What locks the coordinator's socket."""
        return ServerLock(self._pair, self.admits)

    def admits(self, key: bytes) -> bool:
        """Whether a key may connect; from any thread."""
        return key in self._valid

    def is_node(self, identity: bytes) -> bool:
        """Whether a peer's key is, or was, that of a node."""
        entry = self._entries.get(key_of(identity))
        return entry is not None and entry.kind == NODE

    def name_of(self, identity: bytes) -> str:
        """Return what a peer's key is called, for people."""
        entry = self._entries.get(key_of(identity))
        return "a stranger" if entry is None else f"{entry.kind} '{entry.name}'"

    def name_of_short(self, short: str) -> str:
        """Return what a key is called of which the audit log has the beginning, in hex; empty if there is none."""
        found = [entry for key, entry in self._entries.items() if short and key.hex().startswith(short)]
        return f"{found[0].kind} '{found[0].name}'" if found else ""

    # --- messages ---------------------------------------------------------------------------------------------------------------------

    def refusal(self, identity: bytes, message: AgentMessage | ClientMessage | key_messages.KeyMessage) -> str:
        """Return why somebody may not say this; empty if they may."""
        entry = self._entries.get(key_of(identity))
        if entry is None or not entry.is_valid(self._clock()):
            return SHUT_OUT
        self._silent.pop(entry.key, None)
        if type(message) not in MAY[entry.kind]:
            enrol = "; enrol first" if entry.kind == Role.AGENT.value and isinstance(message, AgentMessage) else ""
            kinds = needed_for(type(message))
            return f"{entry.kind} '{entry.name}' may not say {type(message).__name__}: that takes a key of {kinds}{enrol}"
        return self._wrong_join(entry, message) if isinstance(message, Join) else ""

    def _wrong_join(self, entry: KeyRecord, join: Join) -> str:
        if join.name != entry.name:
            return f"the key of node '{entry.name}' cannot join as '{join.name}'; enrol under that name, with a token"
        if join.fingerprint != entry.fingerprint:
            return f"node '{entry.name}' shows a certificate that was not made for it; start it anew"
        return ""

    def answer(
        self, identity: bytes, message: key_messages.KeyMessage, connections: Callable[[bytes], int]
    ) -> tuple[KeyAnswer, KeyChange | None]:
        """Return the answer to an allowed message, and what is to be written before it is given; None: nothing is."""
        try:
            match message:
                case key_messages.Enrol():
                    return self._enrol(identity, message, connections)
                case key_messages.CreateToken():
                    self._check_name(message.name)
                    token, entry = self._new(_role(message.role), message.name, message.lasts_s)
                    return key_messages.TokenMade(message.call, token.text), self._changed(connections, entry)
                case key_messages.ListTokens():
                    return key_messages.Tokens(message.call, _statuses(self._entries, self._clock(), connections)), None
                case key_messages.RevokeToken():
                    gone = self._find(message.name)
                    own = {gone.name: None} if gone.name in {LOCAL, JOIN} else {}
                    change = self._changed(connections, replace(gone, revoked=self._clock()), **own)
                    return key_messages.Tokens(message.call, _statuses(change.entries, self._clock(), connections)), change
                case key_messages.RotateToken():
                    return self._rotate(message, connections)
                case _:
                    assert_never(message)
        except BbgrapError as error:
            return refused_call(message, str(error), Fault.of(error)), None

    def take(self, change: KeyChange) -> None:
        """Let hold what is on the disk. `ended` then says which connections shall end."""
        self._entries = dict(change.entries)
        self._signed = {key: kept for key, kept in self._signed.items() if bytes.fromhex(key) in self._entries}
        self._renew()

    def ended(self) -> list[bytes]:
        """Return the keys that were taken back, replaced or have expired since this was asked."""
        now = self._clock()
        # Both ways: a clock that was ahead for a while may be right again.
        if any(entry.is_valid(now) != (key in self._valid) for key, entry in self._entries.items()):
            self._renew()
        ended, self._ended = self._ended, []
        return ended

    # --- nodes ------------------------------------------------------------------------------------------------------------------------

    def key_of_node(self, name: str) -> str:
        """Return the key of the node with this name, in hex; empty if there is none."""
        entry = self._named(name)
        return entry.key if entry is not None and entry.kind == NODE else ""

    def _enrol(
        self, identity: bytes, message: key_messages.Enrol, connections: Callable[[bytes], int]
    ) -> tuple[key_messages.Enrolled | Refused, KeyChange | None]:
        by, key = self._entries[key_of(identity)], bytes.fromhex(message.key)
        replaced: list[KeyRecord] = []
        if by.kind == NODE:
            if key != key_of(identity) or message.name != by.name:
                return Refused(f"node '{by.name}' may renew its own certificate only; enrol others with a token", retry=False), None
            entry = by
        else:
            before = self._named(message.name)
            if before is not None and before.kind == NODE and before.key != message.key:
                if holder := self._holder(before, connections):
                    return Refused(f"the name '{message.name}' is taken by {holder}; choose another with --name", retry=True), None
                # A machine that has lost its key comes again.
                replaced.append(replace(before, revoked=self._clock()))
            elif before is None or before.kind != NODE:
                self._check_name(message.name)
            if key in self._entries and (before is None or before.key != message.key):
                return Refused("this key is known already, under another name, or was taken back; make a new one", retry=False), None
            known = before if before is not None and before.key == message.key else None
            entry = replace(known or KeyRecord(message.key, NODE, message.name, self._clock()), by=by.name)
        certificate, authority, fingerprint = b"", b"", ""
        if self._authority is not None:  # first: a request that is none changes nothing
            before_request, certificate = self._signed.get(message.key, (b"", b""))
            if message.request != before_request or not certificate:
                certificate = self._authority.sign(message.request, message.name)
            self._signed[message.key] = message.request, certificate
            authority = self._authority.certificate
            fingerprint = fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate.decode()))
        if by.kind != NODE:
            self._silent[message.key] = self._clock()
        entry, answer = replace(entry, fingerprint=fingerprint), key_messages.Enrolled(certificate, authority)
        # A node says it again while it waits: then nothing is to be written.
        return answer, None if self._entries.get(key) == entry else self._changed(connections, *replaced, entry)

    def _holder(self, node: KeyRecord, connections: Callable[[bytes], int]) -> str:
        """Return who has a node's name, in words; empty if nobody does any more."""
        if connections(bytes.fromhex(node.key)):
            return "a live agent"
        now = self._clock()
        # A clock that was set back holds nothing.
        self._silent = {key: since for key, since in self._silent.items() if 0 <= now - since < HELD_S}
        return "another agent, which has just enrolled and is starting" if node.key in self._silent else ""

    # --- tokens -----------------------------------------------------------------------------------------------------------------------

    def _kept_token(self, name: str, role: Role) -> Token:
        """Return the token in a file, or a new one if it is not valid any more."""
        path = self.token_file(name)
        try:
            token = Token.parse(path.read_text(), f"token file '{path}'")
        except (OSError, AccessError):
            return self._make_kept(name, role)
        return token if token.server == self._pair.public and self.admits(KeyPair.of(token.secret).public) else self._make_kept(name, role)

    def _make_kept(self, name: str, role: Role) -> Token:
        token, entry = self._new(role, name, 0.0)
        change = self._changed(lambda _: 0, entry, **{name: token.text})
        change.write()
        self.take(change)
        return token

    def _new(self, role: Role, name: str, lasts_s: float) -> tuple[Token, KeyRecord]:
        pair, now = KeyPair.make(), self._clock()
        entry = KeyRecord(pair.public.hex(), role.value, name, now, expires=now + lasts_s if lasts_s else 0.0)
        return Token(role, self._pair.public, pair.secret), entry

    def _rotate(self, message: key_messages.RotateToken, connections: Callable[[bytes], int]) -> tuple[key_messages.TokenMade, KeyChange]:
        old = self._find(message.name)
        if old.kind == NODE:
            raise UsageError(f"'{old.name}' is a node: it has no token; to let it enrol anew, revoke it")
        now = self._clock()
        ends = now + message.grace_s
        replaced = replace(old, name=self._name_of_replaced(old.name), expires=min(old.expires or ends, ends))
        token, entry = self._new(_role(old.kind), old.name, old.expires - now if old.expires else 0.0)
        own = {old.name: token.text} if old.name in {LOCAL, JOIN} else {}
        return key_messages.TokenMade(message.call, token.text), self._changed(connections, replaced, entry, **own)

    def _name_of_replaced(self, name: str) -> str:
        """Return what a token is called until it ends, now that another one has its name."""
        taken = {entry.name for entry in self._valid_entries()}
        ends = chain([" (rotated)"], (f" (rotated {number})" for number in count(2)))
        names = (name.encode()[: key_messages.MAX_KEY_NAME_BYTES - len(end)].decode(errors="ignore") + end for end in ends)
        return next(name for name in names if name not in taken)

    def _find(self, name: str) -> KeyRecord:
        found = self._named(name)
        if found is None:
            names = ", ".join(f"'{entry.name}'" for entry in self._valid_entries())
            raise UsageError(f"no valid token or node is called '{name}'; there are {names}")
        return found

    def _named(self, name: str) -> KeyRecord | None:
        return next((entry for entry in self._valid_entries() if entry.name == name), None)

    def _valid_entries(self) -> list[KeyRecord]:
        now = self._clock()
        return [entry for entry in self._entries.values() if entry.is_valid(now)]

    def _check_name(self, name: str) -> None:
        if not name or name != name.strip() or not name.isprintable() or name in {COORDINATOR, LOCAL}:
            raise UsageError(f"name '{name[:40]}': expected a printable name other than '{COORDINATOR}' and '{LOCAL}'")
        if self._named(name) is not None:
            raise UsageError(f"the name '{name}' is taken by another token or node; choose another, or revoke that one")

    def _changed(self, connections: Callable[[bytes], int], *changed: KeyRecord, **token_files: str | None) -> KeyChange:
        """Return the keys with some that are new or other ones, and what the files of the coordinator's own tokens hold, by name."""
        entries: Mapping[bytes, KeyRecord] = {**self._entries, **{bytes.fromhex(entry.key): entry for entry in changed}}
        if len(entries) > MAX_ENTRIES:
            entries = self._pruned(entries, connections)
        return KeyChange(self._path, self._secrets, entries, {self.token_file(name): text for name, text in token_files.items()})

    def _pruned(self, entries: Mapping[bytes, KeyRecord], connections: Callable[[bytes], int]) -> dict[bytes, KeyRecord]:
        now, by_age = self._clock(), sorted(entries, key=lambda key: entries[key].made)
        ended = (key for key in by_age if not entries[key].is_valid(now))
        away = (key for key in by_age if entries[key].kind == NODE and not self._holder(entries[key], connections))
        oldest = next(chain(ended, away), None)
        if oldest is None:
            raise AccessError(f"keys: there are {MAX_ENTRIES}, the most there may be; revoke some")
        return {key: entry for key, entry in entries.items() if key != oldest}

    def _renew(self) -> None:
        now, before = self._clock(), self._valid
        self._valid = frozenset(key for key, entry in self._entries.items() if entry.is_valid(now))
        self._ended += before - self._valid


def _statuses(entries: Mapping[bytes, KeyRecord], now: float, connections: Callable[[bytes], int]) -> tuple[key_messages.KeyStatus, ...]:
    return tuple(
        key_messages.KeyStatus(e.name, e.kind, e.key, e.made, e.expires, e.revoked, e.by, connections(key), e.is_valid(now))
        for key, e in entries.items()
    )


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise UsageError(f"role '{text[:40]}': expected one of {', '.join(role.value for role in Role)}") from None

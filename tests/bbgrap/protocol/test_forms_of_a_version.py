"""One version of the protocol has one form of every message: a peer of the same number takes what it is sent, or says who is of another."""

import hashlib
from dataclasses import is_dataclass
from enum import Enum
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from bbgrap.protocol import agent_directions, directions
from bbgrap.protocol.codec import Codec
from bbgrap.protocol.messages import PROTOCOL_VERSION
from bbgrap.protocol.schema import schema_of

FORMS = (20, "11a51aaf7344dea9")
"""The version, and the digest of its forms."""


def form(hint, found):
    """The type of a field in words, limits apart; the classes that it leads to are added to what was found."""
    if get_origin(hint) is Annotated:
        return form(get_args(hint)[0], found)
    if get_origin(hint) is Literal:
        return repr(get_args(hint))
    if get_origin(hint) in {Union, UnionType}:
        return "|".join(sorted(form(member, found) for member in get_args(hint)))
    if get_origin(hint) is not None:
        return f"{get_origin(hint).__name__}[{','.join(form(part, found) for part in get_args(hint))}]"
    name = getattr(hint, "__name__", repr(hint))
    if name not in found and isinstance(hint, type) and issubclass(hint, Enum):
        found[name] = [member.value for member in hint]
    elif name not in found and is_dataclass(hint):
        found[name] = []
        found[name] += [f"{field}: {form(kind, found)}" for field, kind in schema_of(hint)]
    return name


def test_messages_have_other_forms_only_in_another_version():
    found = {}
    codecs = [codec for module in (directions, agent_directions) for codec in vars(module).values() if isinstance(codec, Codec)]
    for codec in codecs:
        for kind in codec._kinds.values():
            form(kind, found)
    assert len(found) > 90
    now = PROTOCOL_VERSION, hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]
    assert now == FORMS, "messages have another form: raise PROTOCOL_VERSION, also in CHANGELOG.md, and note both numbers here"

"""From dataclasses to msgpack's plain values and back, with the types of the fields as the schema.

A value becomes the list of its fields in order, a member of a union is preceded by its class name, an enum is its value. Whatever does
not have exactly the declared type, size and form is a `SchemaError` that says which field of which class it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from bbgrap.errors import LocalProtocolError
from bbgrap.protocol.checks import check_deploy
from bbgrap.protocol.limits import MAX_INTEGER, MAX_TEXT_BYTES, Length, Payload, TextForm
from bbgrap.protocol.messages import Deploy
from bbgrap.runtime.recording import Record, check_record
from bbgrap.runtime.schedule import LocalStep, Schedule, check_schedule

FieldReader = Callable[[object], object]


class SchemaError(Exception):
    """A value does not have the type its field declares."""


_CHECKS: dict[type[Any], Callable[[Any], Sequence[str]]] = {Schedule: check_schedule, Deploy: check_deploy, Record: check_record}
"""Laws beyond types; every value of these classes keeps them once decoded."""

_NAMED: frozenset[type[Any]] = frozenset(get_args(LocalStep))
"""Classes that are members of a union."""

_SCHEMAS: dict[type[Any], tuple[tuple[str, object], ...]] = {}


def schema_of(kind: type[Any]) -> tuple[tuple[str, object], ...]:
    """Return the fields of a dataclass with their types."""
    if kind not in _SCHEMAS:
        hints = get_type_hints(kind, include_extras=True)
        _SCHEMAS[kind] = tuple((field.name, hints[field.name]) for field in fields(kind))
    return _SCHEMAS[kind]


def payload_of(kind: type[Any]) -> tuple[str, Payload] | None:
    """Return the field of a message that travels in frames of its own, and its limits."""
    marks = ((name, mark) for name, hint in schema_of(kind) if get_origin(hint) is Annotated for mark in get_args(hint)[1:])
    return next(((name, mark) for name, mark in marks if isinstance(mark, Payload)), None)


# --- to plain values --------------------------------------------------------------------------------------------------------------


def plain_form(value: object) -> object:
    """Return what msgpack does not know in terms of what it knows, one level deep.

    Raises:
        LocalProtocolError: if the value has no plain form.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if not is_dataclass(value) or isinstance(value, type):
        raise LocalProtocolError(f"value of type {type(value).__name__}: messages hold plain values only")
    body = [getattr(value, name) for name, _ in schema_of(type(value))]
    return [type(value).__name__, *body] if type(value) in _NAMED else body


# --- from plain values ------------------------------------------------------------------------------------------------------------


def build(kind: type[Any], body: object, extra: Mapping[str, object] | None = None) -> object:
    """Make a dataclass of the list of its fields, except those given in `extra`.

    Raises:
        SchemaError: if a field does not have its type, or the whole breaks a law of its class.
    """
    schema = _readers(cast("Any", kind), frozenset(extra or ()))
    if not isinstance(body, tuple) or len(body) != len(schema):
        raise SchemaError(f"{kind.__name__}: expected {len(schema)} fields")
    values = dict(extra or {})
    for (name, read), value in zip(schema, body, strict=True):
        try:
            values[name] = read(value)
        except SchemaError as error:
            raise SchemaError(f"{kind.__name__}.{name}: {error}") from error
    built: object = kind(**values)
    faults = _CHECKS[kind](built) if kind in _CHECKS else ()
    if faults:
        raise SchemaError(f"{kind.__name__}: {faults[0]}" + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""))
    return built


@cache
def _readers(kind: Any, without: frozenset[str]) -> tuple[tuple[str, FieldReader], ...]:  # noqa: ANN401 - a class of dataclasses
    """Return the fields of a dataclass, but for some, each with what reads it."""
    return tuple((name, _reader(hint)) for name, hint in schema_of(kind) if name not in without)


@cache
def _reader(hint: Any) -> FieldReader:  # noqa: ANN401 - any type is a schema
    """Return the function that turns a plain value into the field's type, or raises `SchemaError`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _marked(arguments[0], arguments[1:])
    if origin in {Union, UnionType}:
        return _union(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is Literal:
        return _member({option: option for option in arguments})
    if origin is not None:
        return _mapping(_reader(arguments[0]), _reader(arguments[1]))
    if issubclass(hint, Enum):
        return _member({member.value: member for member in hint})
    if is_dataclass(hint):
        return partial(build, cast("type[Any]", hint))
    return _SCALARS[hint]


def _checked(expected: str, holds: Callable[[Any], bool]) -> FieldReader:
    """Return what takes values for which a law holds."""

    def read(value: object) -> object:
        if not holds(value):
            raise SchemaError(f"expected {expected}, got {_shown(value)}")
        return value

    return read


def _shown(value: object) -> str:
    return str(value)[:80] if isinstance(value, int | float | str) else type(value).__name__


def _is_text(value: object, limit: int) -> bool:
    return type(value) is str and len(value.encode()) <= limit


_NUMBER = _checked("a finite number", lambda value: type(value) in {int, float} and isfinite(value))
_SCALARS: dict[object, FieldReader] = {
    int: _checked(f"an integer from 0 to {MAX_INTEGER}", lambda value: type(value) is int and 0 <= value <= MAX_INTEGER),
    float: lambda value: float(cast("float", _NUMBER(value))),
    bool: _checked("true or false", lambda value: type(value) is bool),
    str: _checked(f"a text of at most {MAX_TEXT_BYTES} bytes", lambda value: _is_text(value, MAX_TEXT_BYTES)),
    bytes: _checked("bytes", lambda value: type(value) is bytes),
}


def _marked(hint: object, marks: Sequence[object]) -> FieldReader:
    """Return what reads a text, bytes or a list of limited length, and perhaps a text of a form."""
    lengths = [mark.most for mark in marks if isinstance(mark, Length)]
    if hint is not str:
        return _limited(_reader(hint), lengths[0]) if lengths else _reader(hint)
    limit = lengths[0] if lengths else MAX_TEXT_BYTES
    form = next((mark for mark in marks if isinstance(mark, TextForm)), None)
    if form is None:
        return _checked(f"a text of at most {limit} bytes", lambda value: _is_text(value, limit))
    return _checked(form.expected, lambda value: _is_text(value, limit) and form.holds(value))


def _limited(read: FieldReader, most: int) -> FieldReader:
    def read_limited(value: object) -> object:
        if isinstance(value, bytes | tuple) and len(value) > most:
            raise SchemaError(f"expected at most {most} {'bytes' if isinstance(value, bytes) else 'entries'}, got {len(value)}")
        return read(value)

    return read_limited


def _tuple(arguments: tuple[object, ...]) -> FieldReader:
    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, tuple):
            raise SchemaError(f"expected a list, got {type(value).__name__}")
        if arguments[-1] is Ellipsis:
            item = _reader(arguments[0])
            return tuple([item(entry) for entry in value])
        if len(value) != len(arguments):
            raise SchemaError(f"expected a list of {len(arguments)}, got {len(value)}")
        return tuple(_reader(hint)(entry) for hint, entry in zip(arguments, value, strict=True))

    return read


def _mapping(key: FieldReader, item: FieldReader) -> FieldReader:
    def read(value: object) -> dict[object, object]:
        if not isinstance(value, dict):
            raise SchemaError(f"expected a map, got {type(value).__name__}")
        return {key(name): item(entry) for name, entry in value.items()}

    return read


def _member(members: Mapping[object, object]) -> FieldReader:
    read = _checked(f"one of {', '.join(sorted(map(str, members)))}", lambda value: type(value) in {int, str} and value in members)
    return lambda value: members[read(value)]


def _union(arguments: tuple[object, ...]) -> FieldReader:
    """Read `T | None`, or a union of dataclasses, whose members are told apart by their names."""
    others = [argument for argument in arguments if argument is not NoneType]
    kinds = {kind.__name__: kind for kind in others if isinstance(kind, type)} if len(others) > 1 else {}

    def read(value: object) -> object:
        if value is None and len(others) < len(arguments):
            return None
        if not kinds:
            return _reader(others[0])(value)
        name = value[0] if isinstance(value, tuple) and value else None
        kind = kinds.get(name) if isinstance(name, str) else None
        if kind is None or not isinstance(value, tuple):
            raise SchemaError(f"expected one of {', '.join(kinds)}")
        return build(kind, value[1:])

    return read

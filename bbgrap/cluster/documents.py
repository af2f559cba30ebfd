"""Reading one YAML document so that all its faults are found, each with its line; nothing here knows what the document is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import yaml

from bbgrap.cluster.units import LARGEST, LEAST, parse_quantity
from bbgrap.errors import ClusterFileError

_Item = TypeVar("_Item")

MAX_BYTES = 4 << 20
"""Of a file. Chosen: ten thousand nodes with what is known of each; it takes minutes to read."""

MAX_DIGITS = 18
"""Of a whole number: it fits 64 bits."""


class Document:
    """Walks the YAML of one file and collects its faults, in the order of its lines.

    What is read of a faulty part is made up, and of no use; `report` raises before it is used.
    """

    def __init__(self, path: Path) -> None:
        """Parse a file; only one that cannot be read at all is an error here, the rest are faults.

        Raises:
            ClusterFileError: if the file cannot be read.
        """
        self.path = path
        self.faults: list[tuple[int, str]] = []
        self._root: yaml.Node | None = None
        try:
            with path.open("rb") as stream:
                content = stream.read(MAX_BYTES + 1)
            if len(content) > MAX_BYTES:
                raise ClusterFileError(f"'{path}': expected at most {MAX_BYTES} bytes, got more")
            self._root = yaml.compose(content.decode("utf-8"), Loader=yaml.SafeLoader)
        except OSError as error:
            raise ClusterFileError(f"'{path}': cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            self.faults.append((1, "it is not UTF-8 text"))
        except RecursionError:
            self.faults.append((1, "it is nested too deep"))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.faults.append((mark.line + 1 if mark else 1, f"it is not YAML: {error.problem or error.context}"))
        except yaml.YAMLError as error:
            self.faults.append((1, f"it is not YAML: {' '.join(str(error).split())}"))
        else:
            if self._root is None:
                self.faults.append((1, "it is empty"))

    def report(self) -> None:
        """Raise `ClusterFileError` with all faults, if there are any."""
        if self.faults:
            lines = "; ".join(f"line {line}: {text}" for line, text in sorted(self.faults, key=lambda fault: fault[0]))
            raise ClusterFileError(f"'{self.path}': {lines}")

    @property
    def root(self) -> yaml.Node:
        """The whole document, of a file that could be parsed."""
        assert self._root is not None, "whoever asks has looked at the faults"
        return self._root

    def fault(self, node: yaml.Node, text: str) -> None:
        """Note what is wrong with a part."""
        self.faults.append((node.start_mark.line + 1, text))

    def mapping(self, root: yaml.Node, who: str, known: tuple[str, ...] | None) -> dict[str, yaml.Node]:
        """Return the values of a mapping by key; `known=None` allows any key."""
        if not isinstance(root, yaml.MappingNode):
            expected = "" if known is None else f" with the keys {', '.join(known)}"
            self.fault(root, f"{who}: expected a mapping{expected}, got {shown(root)}")
            return {}
        found: dict[str, yaml.Node] = {}
        for key_node, value in root.value:
            key = self.text(key_node, f"{who}: a key")
            if key in found:
                self.fault(key_node, f"{who}: the key '{key}' is there twice")
            elif known is not None and key not in known:
                self.fault(key_node, f"{who}: unknown key '{key}', expected {', '.join(known)}")
            else:
                found[key] = value
        return found

    def each(self, root: yaml.Node | None, who: str, read: Callable[[str, yaml.Node], _Item]) -> tuple[_Item, ...]:
        """Return what is read of every entry of a mapping with free keys; nothing if it is not there."""
        return () if root is None else tuple(read(key, item) for key, item in self.mapping(root, who, None).items())

    def items(self, node: yaml.Node | None, who: str) -> list[yaml.Node]:
        """Return the entries of a list, at least one; none if it is not there."""
        if node is None or (isinstance(node, yaml.SequenceNode) and node.value):
            return [] if node is None else list(node.value)
        self.fault(node, f"{who}: expected a list, got {shown(node)}")
        return []

    def text(self, node: yaml.Node, who: str) -> str:
        """Return a text that is not empty."""
        if isinstance(node, yaml.ScalarNode) and node.value and node.tag != "tag:yaml.org,2002:null":
            return str(node.value)
        self.fault(node, f"{who}: expected a text, got {shown(node)}")
        return ""

    def number(self, node: yaml.Node, who: str, units: Mapping[str, float], above: float | None) -> float:
        """Return a number, or one with a unit, in the base unit: above a bound, or not negative."""
        expected = "a number"
        if isinstance(node, yaml.ScalarNode):
            try:
                value = parse_quantity(str(node.value), units)
            except ValueError as error:
                expected = str(error)
            else:
                if (value >= 0 if above is None else value >= max(above, LEAST)) and value <= LARGEST:
                    return value
                expected = "a number that is not negative" if above is None else f"a number above {above:g}"
                expected = f"a number from {LEAST:g} to {LARGEST:g}" if value > 0 else expected
        self.fault(node, f"{who}: expected {expected}, got {shown(node)}")
        return 1.0

    def count(self, node: yaml.Node, who: str) -> int:
        """Return a whole number that is not negative."""
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
        if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS:
            return int(text)
        self.fault(node, f"{who}: expected a whole number, got {shown(node)}")
        return 0


def keys(node: yaml.Node | None) -> dict[str, yaml.Node]:
    """Return the keys of a mapping and where they stand; none if it is no mapping."""
    return {str(key.value): key for key, _ in node.value} if isinstance(node, yaml.MappingNode) else {}


def shown(node: yaml.Node) -> str:
    """Return what an error says was found."""
    match node:
        case yaml.ScalarNode():
            return f"'{node.value}'" if node.value else "nothing"
        case yaml.SequenceNode():
            return "a list"
        case _:
            return "a mapping"

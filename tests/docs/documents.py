"""The documents that readers get, and what is in their fenced blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = {"docs/reference/commands.md", "docs/reference/operators.md"}
"""Pages that a tool writes from beginning to end."""


@dataclass(frozen=True, slots=True)
class Document:
    """A page; `name` is its path from the root."""

    name: str
    text: str

    @property
    def is_decision(self) -> bool:
        return self.name.startswith("docs/decisions/")

    @property
    def is_tutorial(self) -> bool:
        return self.name.startswith("docs/tutorials/")

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return re.sub(r"^```.*?^```$", "", self.text, flags=re.MULTILINE | re.DOTALL)

    @property
    def words(self) -> int:
        """How many words were written by hand."""
        return len(re.sub(r"<!-- generated: .*?<!-- end -->", "", self.text, flags=re.DOTALL).split())

    def blocks(self, language: str) -> Iterator[str]:
        """Yield the fenced blocks of a language."""
        yield from re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)


def documents() -> list[Document]:
    """Return README, CONTRIBUTING, CHANGELOG and all pages of docs/."""
    paths = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [Document(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


def commands(*, tutorials: bool, only: str = "") -> list[str]:
    """Return every shell command of the tutorials, or of all other documents, or of one by its name, once, without its comment."""
    chosen = [document for document in documents() if document.is_tutorial == tutorials and only in {"", document.name}]
    lines = [line for document in chosen for block in document.blocks("sh") for line in block.splitlines()]
    return list(dict.fromkeys(command for line in lines if (command := re.sub(r"(^|\s)#.*", "", line).strip())))

"""Redraw the state diagrams of docs/protocol.md from the tables in `bbgrap.control.states`; takes no arguments."""

import re
from pathlib import Path

from bbgrap.control.states import Role, diagram

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"


def redrawn(text: str) -> str:
    """Return the page with all diagrams as the tables have them now."""
    for role in Role:
        block = f"### {role.value}\n\n```mermaid\n{diagram(role)}\n```"
        pattern = rf"### {re.escape(role.value)}\n\n```mermaid\n.*?\n```"
        text, count = re.subn(pattern, lambda _, block=block: block, text, count=1, flags=re.DOTALL)
        text = text if count else f"{text.rstrip()}\n\n{block}\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))

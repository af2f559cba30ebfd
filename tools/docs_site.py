"""What MkDocs cannot say in mkdocs.yml: it loads this file as a hook (`make docs`).

The pages are written for the repository page, and the site is made of the very same files:

1. The order of the site is that of docs/index.md and docs/decisions.md; it is said nowhere else.
2. README, CONTRIBUTING and CHANGELOG are pages of the site, too; every other file or folder of the repository that a page links to is
   one that shows its text. So no link leads out of the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ROOT_PAGES = {"README.md": "project/readme.md", "CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}
"""Pages beside docs/, and what they are in the site. The last part must not be README, which MkDocs takes for an index."""
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=(?:#[^)\s]*)?\))")
"""The file of a link, without its heading; links with a scheme lead out."""
ENTRY = re.compile(r"^(?:\d+\. |- |\| )\[(?P<title>[^]]+)\]\((?P<path>[^)#]+\.md)\)(?: \| (?P<of>[^|]+) \|)?", re.MULTILINE)
"""A row of a list or table that begins with a link."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the order of the pages from those that list them."""
    parts = re.split(r"^## ", (DOCS / "index.md").read_text(), flags=re.MULTILINE)[1:]
    sections = [{part.splitlines()[0]: [{row["title"]: row["path"]} for row in ENTRY.finditer(part)]} for part in parts]
    decisions = [{f"{row['title']}. {row['of']}": row["path"]} for row in ENTRY.finditer((DOCS / "decisions.md").read_text())]
    project = [{Path(name).stem.capitalize(): page} for name, page in ROOT_PAGES.items()]
    files = [{name: page_of(name)} for name in shown_files()]
    config.nav = [{"Start": "index.md"}, *sections, {"Records": decisions}, {"Project": [*project, *files]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for name in shown_files():
        files.append(File.generated(config, page_of(name), content=shown(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links that lead out of docs/, or come from there, lead to the pages of the site."""
    uri = page.file.src_uri
    name = next((name for name, made in ROOT_PAGES.items() if made == uri), f"docs/{uri}")

    def moved(match: re.Match[str]) -> str:
        target = resolved(name, match[1])
        return posixpath.relpath(page_of(target), posixpath.dirname(uri) or ".") if (ROOT / target).exists() else match[1]

    return LINK.sub(moved, markdown)


def resolved(name: str, link: str) -> str:
    """Return what a link of a file means, from the root of the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), link))


def page_of(name: str) -> str:
    """Return where a file of the repository is in the site."""
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"project/{name}.md"


def shown_files() -> list[str]:
    """Return the files and folders that pages link to and that are no pages themselves."""
    pages = [*ROOT_PAGES, *(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))]
    linked = {resolved(name, link) for name in pages for link in LINK.findall((ROOT / name).read_text())}
    return sorted(name for name in linked if (ROOT / name).exists() and not name.startswith("docs/") and name not in ROOT_PAGES)


def shown(name: str) -> str:
    """Return a page with the text of a file, or of all files of a folder."""
    return f"# {name}\n\n" + "\n\n".join(f"## {path.relative_to(ROOT)}\n\n~~~~~~ text\n{path.read_text()}~~~~~~" for path in files_of(name))


def files_of(name: str) -> Iterator[Path]:
    """Yield a file, or the files of a folder."""
    path = ROOT / name
    yield from [path] if path.is_file() else sorted(inner for inner in path.rglob("*") if inner.is_file())

"""The site: it builds strictly, asks no other host for anything, and has every page in its navigation. `make test-docs` runs it."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import bbgrap
from tests.docs.documents import ROOT, documents

RESOURCES = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
}
FOREIGN = re.compile(r"(?:[a-z]+:)?//")


class Page(HTMLParser):
    """What a page loads, and what its navigation leads to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.resources: list[str] = []
        self.navigation: set[Path] = set()
        self.path = path
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if found := given.get(RESOURCES.get(tag, "")):
            self.resources.append(found)
        if tag == "a" and "md-nav__link" in (given.get("class") or "") and not (given["href"] or "").startswith("#"):
            self.navigation.add((self.path.parent / (given["href"] or "")).resolve())


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", site]
    surroundings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=surroundings, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.docs
def test_every_document_is_a_page(site):
    for document in documents():
        name = document.name.removeprefix("docs/") if document.name.startswith("docs/") else f"project/{document.name.lower()}"
        assert (site / name).with_suffix(".html").exists(), name


@pytest.mark.docs
def test_every_page_is_in_the_navigation(site):
    pages = {path for path in site.rglob("*.html") if path.name != "404.html"}
    assert Page(site / "index.html").navigation | {site / "index.html"} == pages


@pytest.mark.docs
def test_no_page_loads_anything_from_another_host(site):
    for path in site.rglob("*.html"):
        assert [given for given in Page(path).resources if FOREIGN.match(given)] == []
        assert 'class="mermaid"' not in path.read_text(), "the theme would load the program that draws it"
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()), path


@pytest.mark.docs
def test_the_api_has_docstrings(site):
    text = (site / "reference" / "api.html").read_text()
    assert all(f'id="bbgrap.{name}"' in text for name in bbgrap.__all__ if name != "__version__")
    assert "Run in the background and call" in text


@pytest.mark.docs
@pytest.mark.parametrize("link", ["nowhere.md", "answers.md#nowhere", "../nowhere.yaml"])
def test_a_broken_link_ends_the_build(link, tmp_path):
    for name in ("docs", "tools", "deploy", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "docs" / "tour.md").open("a") as page:
        page.write(f"\n[broken]({link})\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "tour.md" in done.stderr
    assert link.removeprefix("../") in done.stderr


def test_the_page_of_the_api_has_every_public_name():
    named = re.findall(r"^::: bbgrap\.(\w+)$", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(set(bbgrap.__all__) - {"__version__"})

"""The documentation builds as a site that shows what code hosts show, and that asks no other host for anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

from scripts import site
from scripts.pages import ROOT
from tests.browsing import new_page, running_browser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNTED = ("li", "tr", "pre", "h2", "h3", "h4", "img", "blockquote", "ol", "ul")
MOST_WORDS = 70_000
POLICY = "default-src 'self'; img-src 'self' data:;"
# Attributes whose target a browser fetches without being asked; `a` is left out, because readers follow it or not.
LOADING = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "srcset"),
    ("use", "href"),
}


class Reader(HTMLParser):
    """The tags, the links and what is loaded; of the article alone if the page has one."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.is_page = "<article" in html
        self.is_inside = not self.is_page
        self.counts: Counter[str] = Counter()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.policies: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.is_inside = self.is_inside or tag == "article"
        self.loaded += [value or "" for name, value in attrs if (tag, name) in LOADING]
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(known["content"] or "")
        if self.is_inside and tag in COUNTED:
            self.counts[tag] += 1
        if self.is_inside and tag == "a" and known.get("href"):
            self.links.append(known["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self.is_inside = False


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site; its staged pages lie beside it."""
    return site.build(tmp_path_factory.mktemp("docs") / "site")


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Reader]:
    """Return what each built page has, by its path."""
    return {path: Reader(path.read_text(encoding="utf-8")) for path in built.rglob("*.html")}


def page_of(built: Path, markdown: Path) -> Path:
    """Return the page that a staged file became; a README is the first page of its folder."""
    name = "index.html" if markdown.name == "README.md" else f"{markdown.stem}.html"
    return built / markdown.parent.relative_to(built.parent / "pages") / name


def leads_to(page: Path, link: str) -> Path:
    target = unquote(urlsplit(link).path)
    return (page.parent / target).resolve() if target else page


def test_every_page_shows_what_a_code_host_shows(built: Path, pages: dict[Path, Reader]) -> None:
    reader = MarkdownIt("commonmark").enable("table")
    staged = sorted((built.parent / "pages").rglob("*.md"))
    assert {built.parent / "pages" / path for path in site.find_files() if path.suffix == ".md"} == set(staged)
    different = {
        str(path.relative_to(built.parent)): (expected, shown)
        for path in staged
        if (expected := Reader(reader.render(path.read_text(encoding="utf-8"))).counts)
        != (shown := pages[page_of(built, path)].counts)
    }
    assert different == {}


def test_every_page_is_two_clicks_from_the_first_one(built: Path, pages: dict[Path, Reader]) -> None:
    first = built / "index.html"
    near = {leads_to(first, link) for link in pages[first].links}
    reached = near | {leads_to(page, link) for page in near if page in pages for link in pages[page].links}
    all_pages = {page_of(built, path) for path in (built.parent / "pages").rglob("*.md")}
    far = {str(path.relative_to(built)) for path in all_pages - reached - {first}}
    assert far == set(), "these pages need a link in docs/index.md"


def test_the_site_is_short_enough_to_be_read() -> None:
    words = {page: site.count_words((ROOT / page).read_text(encoding="utf-8")) for page in site.list_pages()}
    assert sum(words.values()) <= MOST_WORDS, "run: python -m scripts.site --words"


def test_words_have_letters_and_stand_outside_code() -> None:
    assert (
        site.count_words(
            "<!-- made\nby it -->\n# A page\n\n| `a b` | --- |\n- [two words](x.md) = 4.5\n\n```bash\nls\n```"
        )
        == 6
    )


def test_a_link_to_a_page_that_is_not_on_the_site_becomes_its_words() -> None:
    text = "[why](decisions/0001-one-event-log.md#x), [calls](guides/calls.md), [there](https://example.com/a.md)"
    assert site.unlink(site.INDEX, text) == f"why, {text.partition(', ')[2]}"
    assert not [page for page in site.list_pages() if "decisions" in page.parts]


def test_the_navigation_names_every_page_of_the_site() -> None:
    def pages_in(nav: site.Nav) -> set[str]:
        values = [value for entry in nav for value in entry.values()]
        return {page for value in values for page in ([value] if isinstance(value, str) else pages_in(value))}

    assert pages_in(site.make_nav()) == {str(page) for page in site.list_pages()}


def test_no_page_loads_anything_from_another_host(built: Path, pages: dict[Path, Reader]) -> None:
    foreign = {path.name: [url for url in page.loaded if urlsplit(url).netloc] for path, page in pages.items()}
    assert {name: urls for name, urls in foreign.items() if urls} == {}
    for sheet in built.rglob("*.css"):
        imported = re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"')]+", sheet.read_text(encoding="utf-8"))
        assert imported == [], sheet.name
    # The theme's program can fetch parts of itself for diagrams; no page has one, and the policy would refuse it.
    assert [path.name for path, page in pages.items() if not "".join(page.policies).startswith(POLICY)] == []
    assert all("mermaid" not in path.read_text(encoding="utf-8") for path in pages)


def test_the_search_knows_every_page(built: Path, pages: dict[Path, Reader]) -> None:
    index = json.loads((built / "search.json").read_text(encoding="utf-8"))
    known = {item["location"].partition("#")[0] for item in index["items"]}
    assert {str(path.relative_to(built)) for path in pages} - known == {"404.html"}
    assert any("suspended" in item["text"] for item in index["items"])


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve `folder` on loopback inside the context; the value is its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_the_search_finds_a_page_in_a_browser_that_asks_no_other_host(built: Path) -> None:
    with serve_folder(built) as home:
        async with running_browser() as browser, new_page(browser, home) as (page, watch):
            await page.goto(f"{home}/docs/guides/context.html")
            await page.keyboard.press("/")
            await page.locator("input[aria-label=Search]").fill("suspended executions")
            await page.get_by_role("option", name="Suspended executions").first.click()
            await page.wait_for_url("**/docs/operations/storage.html*#suspended-executions")
            assert watch.complaints == []
            assert watch.foreign == []


@pytest.mark.parametrize("text", ["[gone](gone.md)", "[gone](#gone)"])
def test_a_broken_link_ends_the_build(text: str, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "README.md").write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    (tmp_path / "theme").mkdir()
    config = tmp_path / "zensical.toml"
    config.write_text((site.SOURCE / config.name).read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
    done = subprocess.run(
        command, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "does not exist" in done.stdout + done.stderr


def test_a_list_in_a_paragraph_and_the_flags_of_a_block_are_adapted() -> None:
    text = 'So:\n- one\n  more\n- two\n\n```bash skip="no"\nls:\n- x\n```\nAnd:\n1. three\n'
    assert site.adapt(text) == "So:\n\n- one\n  more\n- two\n\n```bash\nls:\n- x\n```\nAnd:\n\n1. three\n"

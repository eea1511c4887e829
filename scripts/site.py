"""Build the documentation as a site with search, in build/site/site: `python -m scripts.site`.

The pages are staged in the layout of the repository, with every file that they link to, so that their relative links
hold on a code host and on the site alike. The first page is the README; docs/index.md gives the others and their order.
What it lists below "In the repository" is for those who change reasond, and not on the site: a link to such a page
becomes its words.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from scripts.pages import FENCED, LINK, ROOT, links

SOURCE = ROOT / "site"
BUILD = ROOT / "build" / "site"
HOME = Path("README.md")
INDEX = Path("docs") / "index.md"
KEPT = "In the repository"
_HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_LIST_IN_PARAGRAPH = re.compile(r"(?P<line>^(?!- |\d+\. |\s).+)\n(?=- |\d+\. )", re.MULTILINE)
_INNER_LIST = re.compile(r"^ {2,3}(?=- |\d+\. )", re.MULTILINE)
_FENCE_FLAGS = re.compile(r"^(?P<fence>[ \t]*(?:`{3,}|~{3,})\w+)[ \t][^\n]*", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_WORD = re.compile(r"\S*[^\W\d_]\S*")
Nav = list[dict[str, "str | Nav"]]


def resolve(page: Path, target: str) -> Path:
    """Return the path from the root that a link on `page` leads to."""
    return Path(os.path.relpath((ROOT / page).parent / target.partition("#")[0], ROOT))


def unlink(page: Path, markdown: str) -> str:
    """Return the text of `page` with the words of a link in place of each link to a page that is not on the site."""
    on_site = set(list_pages())

    def keep(match: re.Match[str]) -> str:
        target = match["target"].partition("#")[0]
        is_gone = target.endswith(".md") and ":" not in target and resolve(page, target) not in on_site
        return match["text"] if is_gone else match[0]

    return LINK.sub(keep, markdown)


def count_words(markdown: str) -> int:
    """Return how many words a page has: what stands between blanks and has a letter, outside blocks of code."""
    return len(_WORD.findall(_COMMENT.sub("", FENCED.sub("", markdown))))


def adapt(markdown: str) -> str:
    """Return a page as zensical reads it: with blanks before lists and inner lists, and without flags."""
    parts: list[str] = []
    end = 0
    for block in FENCED.finditer(markdown):
        parts += [adapt_lists(markdown[end : block.start()]), _FENCE_FLAGS.sub(r"\g<fence>", block[0], count=1)]
        end = block.end()
    return "".join([*parts, adapt_lists(markdown[end:])])


def adapt_lists(text: str) -> str:
    """Return text between code blocks with its lists adapted."""
    return _INNER_LIST.sub("    ", _LIST_IN_PARAGRAPH.sub(r"\g<line>\n\n", text))


@cache  # every staged page asks
def list_pages() -> tuple[Path, ...]:
    """Return the pages of the site in their order."""
    text = (ROOT / INDEX).read_text(encoding="utf-8").partition(f"\n## {KEPT}\n")[0]
    listed = (resolve(INDEX, target) for _, target in links(text) if target.partition("#")[0].endswith(".md"))
    return tuple(dict.fromkeys((HOME, INDEX, *listed)))


def find_files() -> list[Path]:
    """Return the pages of the site, and every other file that a link leads to from them."""
    found = dict.fromkeys(list_pages())
    for page in list_pages():
        targets = (resolve(page, target) for _, target in links((ROOT / page).read_text(encoding="utf-8")))
        found |= dict.fromkeys(path for path in targets if path.suffix != ".md" and (ROOT / path).is_file())
    return list(found)


def make_nav() -> Nav:
    """Return the navigation: the sections of docs/index.md, each with the pages it links to."""
    sections = _HEADING.split((ROOT / INDEX).read_text(encoding="utf-8"))
    nav: Nav = [{"reasond": str(HOME)}, {"All pages": str(INDEX)}]
    for title, text in zip(sections[1::2], sections[2::2], strict=True):
        pages = {str(resolve(INDEX, target)): words for words, target in links(text) if target.endswith(".md")}
        if title != KEPT:
            nav.append({title: [{" ".join(words.split()): page} for page, words in pages.items()]})
    return nav


def toml_of(nav: Nav) -> str:
    """Return `nav` as an array of inline tables."""
    entries = [
        f"{{ {json.dumps(title)} = {json.dumps(value) if isinstance(value, str) else toml_of(value)} }}"
        for entry in nav
        for title, value in entry.items()
    ]
    return f"[{', '.join(entries)}]"


def stage(folder: Path) -> Path:
    """Write pages, theme and configuration into an empty `folder`; return the path of the configuration."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCE / "theme", folder / "theme")
    for path in find_files():
        staged = folder / "pages" / path
        staged.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            staged.write_text(adapt(unlink(path, (ROOT / path).read_text(encoding="utf-8"))), encoding="utf-8")
        else:
            shutil.copy(ROOT / path, staged)
    config = folder / "zensical.toml"
    text = (SOURCE / "zensical.toml").read_text(encoding="utf-8")
    config.write_text(text.replace("[project]\n", f"[project]\nnav = {toml_of(make_nav())}\n", 1), encoding="utf-8")
    return config


def build(folder: Path) -> Path:
    """Stage and build the site strictly; return its folder.

    Raises:
      CalledProcessError: zensical found a broken link or another fault and printed it.
    """
    config = stage(folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
    subprocess.run(command, check=True, env={**os.environ, "NO_COLOR": "1"})
    return folder / "site"


def main() -> int:
    """Build the site and print where it is, or with --words how many words each page has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--words", action="store_true", help="print the words of each page, and build nothing")
    if parser.parse_args().words:
        counted = {str(page): count_words((ROOT / page).read_text(encoding="utf-8")) for page in list_pages()}
        for page, words in [*sorted(counted.items(), key=lambda entry: entry[1]), ("all", sum(counted.values()))]:
            print(f"{words:7,} {page}")
        return 0
    print(build(BUILD) / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Fill the tables of docs/guides/configuration.md, and write config.example.toml, from what reads the configuration.

The guide's text is written by hand; a table stands between `<!-- table: SECTION -->` and `<!-- end -->`. The top
section `[server]` is named `server`, `[reasoning.performance]` is `reasoning.performance`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.config.reference import format_toml_value, list_key_docs, render_example
from scripts.pages import cell, fill_page, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reasond_server.config.reference import KeyDoc

PATH = Path("docs") / "guides" / "configuration.md"
EXAMPLE = Path("config.example.toml")
# What a default in quotes, true or false, or a number says already.
PLAIN_TYPES = {"text", "true or false", "whole number", "number", "choice"}
HEAD = ("key", "default", "allowed", "meaning")


def size(count: int) -> str:
    """Return a number of bytes in the largest unit that divides it, such as 4 MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"


def key_row(doc: KeyDoc) -> list[str]:
    """Return the row of a key."""
    allowed = doc.range if doc.type_name in PLAIN_TYPES else doc.type_name
    default = "none" if doc.type_name == "table" else f"`{format_toml_value(doc.default)}`"
    if doc.key.endswith("_bytes"):
        allowed = "-".join(size(int(bound)) for bound in doc.range.split("-"))
        default = f"{default} ({size(doc.default)})"
    return [f"`{doc.key.rpartition('.')[2]}`", cell(default), cell(allowed), cell(doc.description)]


def make_tables(docs: Iterable[KeyDoc]) -> dict[str, list[str]]:
    """Return the table of each section."""
    rows: dict[str, list[list[str]]] = {}
    for doc in docs:
        rows.setdefault(doc.section, []).append(key_row(doc))
    return {section: table(HEAD, cells) for section, cells in rows.items()}


def make_pages() -> dict[Path, str]:
    """Return the guide, and the example of a configuration."""
    return {**fill_page(PATH, make_tables(list_key_docs())), EXAMPLE: render_example()}

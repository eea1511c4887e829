"""Write all generated pages and files of the documentation, or with --check compare them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scripts import api_docs, config_docs, error_docs, figures, man_page, metrics_docs, profile_docs, strategy_docs
from scripts.pages import fill_page, write_or_check
from scripts.protos import read

if TYPE_CHECKING:
    from pathlib import Path


def make_pages() -> dict[Path, str]:
    """Return path -> content of all of them."""
    files = read()
    return {
        **api_docs.pages(files),
        error_docs.PATH: error_docs.content(files, error_docs.list_declared()),
        **config_docs.make_pages(),
        **metrics_docs.make_pages(),
        **fill_page(profile_docs.PATH, profile_docs.make_tables()),
        **fill_page(strategy_docs.PATH, strategy_docs.make_tables(strategy_docs.list_built_in())),
        **figures.make_pages(),
        man_page.PATH: man_page.make_page(),
    }


if __name__ == "__main__":
    sys.exit(write_or_check(make_pages(), description=__doc__ or ""))

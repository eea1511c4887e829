from __future__ import annotations

import re
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from reasond_server.cli.program import app
from scripts.man_page import escape, make_page

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = make_page()
COPIED = PAGE.replace("\\-", "-")
MACROS = {".TH", ".SH", ".SS", ".PP", ".TP", '.\\"'}


def list_leaves(*words: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield the words of each command below a group, and the options that its help shows."""
    text = CliRunner().invoke(app, [*words, "--help"], prog_name="reasond").output
    _, _, listed = text.partition("Commands:\n")
    if not listed:
        yield words, set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)) - {"--help"}
    for name in re.findall(r"^  ([a-z-]+) ", listed.partition("\n\n")[0], re.MULTILINE):
        yield from list_leaves(*words, name)


def test_every_command_and_option_of_the_help_is_on_the_page() -> None:
    leaves = dict(list_leaves())
    assert len(leaves) > 20
    for words, options in leaves.items():
        section = COPIED.partition(f".SS reasond {' '.join(words)} ")[2].partition("\n.S")[0]
        assert options == set(re.findall(r"^\\fB(--[a-z-]+)", section, re.MULTILINE)), words


def test_the_page_has_only_requests_that_readers_of_manuals_know() -> None:
    assert {line.split(" ")[0] for line in PAGE.splitlines() if line.startswith((".", "'"))} == MACROS
    assert PAGE.isascii()


def test_exit_codes_and_variables_have_their_sections() -> None:
    status, _, variables = COPIED.partition(".SH EXIT STATUS")[2].partition(".SH ENVIRONMENT")
    assert "\\fB130\\fR\ninterrupted or cancelled" in status
    assert "\\fBNO_COLOR\\fR\nno colours" in variables


def test_text_is_told_as_it_is() -> None:
    assert escape(".env is\n  left out: a\\b") == "\\&.env is left out: a\\eb"

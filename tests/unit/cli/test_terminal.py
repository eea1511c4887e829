from __future__ import annotations

import io

import pytest

from reasond_server.cli.terminal import (
    choose_stream,
    count_columns,
    find_addresses,
    fit_end_of,
    fit_line,
    make_console,
    sanitize,
    write,
)


class Terminal(io.StringIO):
    """A stream that reports that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_people_read_stdout_on_a_terminal_and_stderr_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    assert choose_stream() is out
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert choose_stream() is err


@pytest.mark.parametrize("bad", ["\x1b[2J", "\x9b31m", "\x07", "\r", "\x7f", "\u202e", "\u2066", "\u2028"])
def test_text_of_others_cannot_command_the_terminal(bad: str) -> None:
    assert bad[0] not in sanitize(f"a{bad}b")


def test_line_breaks_tabs_and_letters_of_all_scripts_stay() -> None:
    assert sanitize("a\n\tñ漢") == "a\n\tñ漢"
    assert sanitize("\ud800") == "?"


@pytest.mark.parametrize(
    ("text", "width", "line"),
    [
        ("short", 10, "short"),
        ("a\n b", 10, "a b"),
        ("longer text", 7, "longer…"),
        ("word word", 6, "word…"),
        ("different Refrangibility", 18, "different…"),
        ("a Refrangibility", 10, "a Refrang…"),
        ("one two three", 8, "one two…"),
        ("one two three", 9, "one two…"),
        ("ab", 1, "…"),
        ("漢字漢字", 8, "漢字漢字"),
        ("漢字漢字", 7, "漢字漢…"),
        ("漢字漢字", 6, "漢字…"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
    ],
)
def test_a_line_is_cut_to_its_width(text: str, width: int, line: str) -> None:
    assert fit_line(text, width) == line
    assert count_columns(fit_line(text, width)) <= width


@pytest.mark.parametrize(
    ("text", "width", "line"),
    [
        ("", 10, ""),
        ("one two three", 9, "two three"),
        ("one two three", 8, "three"),
        ("one\ntwo ", 20, "one two"),
        ("Refrangibility", 6, "ility"),
        ("漢字 漢字", 5, "漢字"),
    ],
)
def test_what_is_being_written_begins_with_a_word(text: str, width: int, line: str) -> None:
    found = fit_end_of(text, width)
    assert found.endswith(line)
    assert count_columns(found) <= width


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("no address", []),
        ("See https://a.example/x?y=1#z.", ["https://a.example/x?y=1#z"]),
        ("(http://127.0.0.1:8001/#token=sk), then", ["http://127.0.0.1:8001/#token=sk"]),
        ('"https://a.example" <https://b.example/c>', ["https://a.example", "https://b.example/c"]),
        ("javascript:alert(1) file:///etc/passwd", []),
        ("http://" * 10_000, ["http://" * 10_000]),
    ],
)
def test_addresses_of_the_web_are_found_without_what_ends_a_sentence(text: str, addresses: list[str]) -> None:
    assert [text[first:last] for first, last in find_addresses(text)] == addresses


def test_marks_do_not_pile_up_over_the_lines_around() -> None:
    assert fit_line("e" + "\u0301" * 300, 10) == "e" + "\u0301" * 4


def test_colours_need_a_terminal_and_respect_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = {}
    for name, stream in (("terminal", Terminal()), ("file", io.StringIO())):
        make_console(stream).print("x", style="green")
        printed[name] = stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    silent = Terminal()
    make_console(silent).print("x", style="green")
    assert "\x1b[32m" in printed["terminal"]
    assert printed["file"] == "x\n"
    assert "32m" not in silent.getvalue()


def test_brackets_and_colons_are_no_markup() -> None:
    stream = io.StringIO()
    make_console(stream).print("[bold]x[/] :smile:")
    assert stream.getvalue() == "[bold]x[/] :smile:\n"


def test_written_text_is_there_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    write("out")
    stream = io.StringIO()
    write("elsewhere", stream=stream)
    assert capsys.readouterr().out == "out\n"
    assert stream.getvalue() == "elsewhere\n"

from __future__ import annotations

import tomllib

import pytest

from reasond_server.cli.commands.backends import find_place

SECTION = '[llm]\nmodel = "m"\ncapabilities = {tools = false}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "at the end of f"),
        ("# nothing yet\n", "at the end of f"),
        ('[auth]\nissuer = "x"\n', "at the end of f"),
        ('[llm]\nmodel = "a"\n', "in place of lines 1-2 of f"),
        ("[llm]\n", "in place of line 1 of f"),
        (
            '# mine\n\n[ llm ] # it\nmodel = "a" # that\n\n# of the others\n[auth]\nissuer = "x"\n',
            "in place of lines 3-4 of f",
        ),
        ('[llm]\nmodel = "a"\n[llm.capabilities]\ntools = true\n', "in place of lines 1-2 of f; delete lines 3-4"),
        (
            '[llm.capabilities]\ntools = true\n\n[server]\nreflection = true\n[llm]\nmodel = "a"\n',
            "in place of lines 6-7 of f; delete lines 1-2",
        ),
        ('[llm]\nmodel = "a"\n\n[llm.backends.b]\nmodel = "b"\n', "in place of lines 1-2 of f"),
        ('[llm.backends.b]\nmodel = "b"\n', "at the end of f"),
    ],
)
def test_a_section_in_its_place_makes_a_file_that_holds_it_and_the_rest_as_before(text: str, words: str) -> None:
    place = find_place(text, SECTION, "llm")
    assert place is not None
    assert place.describe("f") == words
    old, new = tomllib.loads(text), tomllib.loads(place.apply(text, SECTION))
    others = {"backends": old["llm"]["backends"]} if "backends" in old.get("llm", {}) else {}
    assert new == {**old, "llm": {"model": "m", "capabilities": {"tools": False}, **others}}


def test_a_backend_of_its_own_is_found_by_its_name() -> None:
    text = '[llm.backends.a]\nmodel = "a"\n[llm.backends.b]\nmodel = "b"\n[llm.backends.b.capabilities]\ntools = true\n'
    place = find_place(text, '[llm.backends.b]\nmodel = "c"', "llm.backends.b")
    assert place is not None
    assert place.describe("f") == "in place of lines 3-4 of f; delete lines 5-6"
    assert tomllib.loads(place.apply(text, '[llm.backends.b]\nmodel = "c"'))["llm"]["backends"] == {
        "a": {"model": "a"},
        "b": {"model": "c"},
    }


@pytest.mark.parametrize(
    "text",
    [
        'llm = { model = "a" }\n',
        'llm.model = "a"\n',
        '[llm]\nmodel = """\n[llm]\n"""\n[auth]\nissuer = """\n[llm]\nmodel = 1\n"""\n',
        "[llm",
    ],
)
def test_what_is_written_in_another_way_has_no_place_in_lines(text: str) -> None:
    place = find_place(text, SECTION, "llm")
    # Where a place is named all the same, it is right.
    assert place is None or tomllib.loads(place.apply(text, SECTION))["llm"]["model"] == "m"

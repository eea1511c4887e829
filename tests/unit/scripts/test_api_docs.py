from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.base import Reason
from scripts.api_docs import (
    CARD_FILE,
    ERRORS,
    FOLDER,
    errors_page,
    list_declared,
    list_meanings,
    make_pages,
    meaning_of,
    show_kind,
)
from scripts.protos import Field, ProtoFile, read

if TYPE_CHECKING:
    from pathlib import Path

LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


@pytest.fixture(scope="module")
def files() -> list[ProtoFile]:
    return read()


@pytest.fixture(scope="module")
def made(files: list[ProtoFile]) -> dict[Path, str]:
    return make_pages(files)


def headings(text: str) -> set[str]:
    return {line.lstrip("# ").lower().replace(".", "") for line in text.splitlines() if line.startswith("#")}


def test_every_declaration_carries_a_comment(files: list[ProtoFile]) -> None:
    comments: dict[str, str] = {}
    for file in files:
        comments |= {service.name: service.comment for service in file.services}
        comments |= {method.name: method.comment for service in file.services for method in service.methods}
        comments |= {message.name: message.comment for message in file.messages}
        comments |= {enum.name: enum.comment for enum in file.enums}
        comments |= {value.name: value.comment for enum in file.enums for value in enum.values}
        for message in file.messages:
            comments |= {f"{message.name}.{field.name}": field.comment for field in message.fields}
    assert len(comments) > 100
    assert [name for name, comment in comments.items() if not comment] == []


def test_every_rpc_field_and_value_has_a_row(files: list[ProtoFile], made: dict[Path, str]) -> None:
    text = "\n".join(made.values())
    for file in files:
        for name in [method.name for service in file.services for method in service.methods]:
            assert f"| `{name}` |" in text
        # Agent cards are those of another protocol, and described there.
        messages = file.messages if file.name != CARD_FILE else ()
        for name in [field.name for message in messages for field in message.fields]:
            assert f"`{name}`" in text


def test_every_link_leads_to_a_heading(made: dict[Path, str]) -> None:
    links = [(path, match[1], match[2]) for path, text in made.items() for match in LINK.finditer(text)]
    assert links
    for path, target, anchor in links:
        # Those that lead out of the folder are looked at with all pages, by tests/docs/test_links.py.
        is_near = anchor is not None and not target.startswith("../")
        assert not is_near or anchor in headings(made[path.parent / target]), f"{path}: {target}#{anchor}"


def test_shared_types_begin_with_executions_and_end_with_cards(made: dict[Path, str]) -> None:
    page = made[FOLDER / "types.md"]
    sections = [line for line in page.splitlines() if line.startswith("## ")]
    names = ["execution", "repairs", "strategies", "turns", "agent_card"]
    assert sections == [f"## {name}.proto" for name in names]
    assert "### Budget\n" in page


def test_a_meaning_that_repeats_the_name_is_left_out() -> None:
    field = Field(name="path", type_name="string", label="", oneof="", choice="", comment="Its path.")
    assert meaning_of(field) == ""
    assert meaning_of(replace(field, comment="Its path below the root.")) == "Its path below the root."
    assert show_kind(replace(field, label="repeated"), {}) == "`string`[]"


def test_a_stream_is_called_a_stream(made: dict[Path, str]) -> None:
    page = made[FOLDER / "reasoning_service.md"]
    assert "| stream of [ReasonIterationsResponse]" in page
    assert "stream of [ReasonResponse]" not in page


def test_maps_repeated_optional_and_alternative_fields_are_told_apart(files: list[ProtoFile]) -> None:
    by_name = {message.name: message for file in files for message in file.messages}
    card = {field.name: field for field in by_name["AgentCard"].fields}
    source = {field.name: field for field in by_name["ReasonIterationsRequest"].fields}
    assert (card["security_schemes"].label, card["security_schemes"].type_name) == ("map", "SecurityScheme")
    assert (card["skills"].label, card["icon_url"].label, card["icon_url"].oneof) == ("repeated", "optional", "")
    assert (source["task"].oneof, source["task"].choice) == ("source", "What to stream. Required.")


def test_every_reason_of_the_proto_has_a_row_with_both_codes(files: list[ProtoFile], made: dict[Path, str]) -> None:
    for row in list_declared():
        [line] = [line for line in made[FOLDER / ERRORS].splitlines() if line.startswith(f"| `{row.name}` |")]
        assert str(row.jsonrpc_code) in line
        assert list_meanings(files)[row.name].split(";")[0] in line


def test_a_reason_without_a_row_in_the_error_table_is_an_error(files: list[ProtoFile]) -> None:
    with pytest.raises(KeyError, match="INTERNAL"):
        errors_page(files, [row for row in list_declared() if row.name != "INTERNAL"])


def test_a_row_that_the_proto_does_not_know_is_an_error(files: list[ProtoFile]) -> None:
    with pytest.raises(KeyError, match="NEW_REASON"):
        errors_page(files, [*list_declared(), Reason("NEW_REASON", "INTERNAL", remedy="")])

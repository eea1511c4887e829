"""The fields are found however a model writes them, and whatever belongs to none is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.carryover_fields import Field, bare_lines, fact_key, read_notes, typed_lines

PLAIN = """Current Strategy: count by hand
Key Findings:
- north has one gate
- south has two
Progress: half way
Next Steps: go east
Unresolved: is the west shut?"""


def test_the_five_fields_are_read() -> None:
    notes = read_notes(PLAIN)
    assert notes.fields == {
        Field.STRATEGY: "count by hand",
        Field.FINDINGS: "- north has one gate\n- south has two",
        Field.PROGRESS: "half way",
        Field.NEXT_STEPS: "go east",
        Field.UNRESOLVED: "is the west shut?",
    }
    assert notes.findings == ("north has one gate", "south has two")
    assert not notes.rest


@pytest.mark.parametrize(
    "line",
    [
        "**Next Steps:** go east",
        "## Next steps: go east",
        "- next_steps: go east",
        "4. NEXT STEP: go east",
        "  * **next**: go east",
        "todo: go east",
        "Nächste Schritte: go east",
        "Prochaines étapes: go east",
        "下一步\uff1ago east",
        "Следующие шаги: go east",
    ],
)
def test_renamed_and_translated_labels_are_known(line: str) -> None:
    assert read_notes(line).fields == {Field.NEXT_STEPS: "go east"}


def test_a_field_goes_on_to_the_next_label_and_twice_is_joined() -> None:
    notes = read_notes("Progress: one\n\ntwo: three\nUnresolved: x\nProgress: four")
    assert notes.fields == {Field.PROGRESS: "one\n\ntwo: three\nfour", Field.UNRESOLVED: "x"}


def test_what_belongs_to_no_field_is_kept_as_it_is() -> None:
    notes = read_notes("Hm, at 12:30 it rains.\nUnknown label: yes\nProgress: some")
    assert notes.rest == "Hm, at 12:30 it rains.\nUnknown label: yes"
    assert read_notes("no label at all").fields == {}


def test_fields_that_say_nothing_are_missing() -> None:
    assert read_notes("Progress:\nNext Steps:   \nUnresolved: **").fields == {}


def test_a_json_object_is_read() -> None:
    text = '{"current_strategy": "count", "Key Findings": ["a", {"b": 1}], "progress": null, "unresolved": 3, "x": "y"}'
    notes = read_notes(text)
    assert notes.fields == {Field.STRATEGY: "count", Field.FINDINGS: 'a\n{"b": 1}', Field.UNRESOLVED: "3"}


@pytest.mark.parametrize("text", ['{"x": 1}', "{broken}", "{" * 100_000 + "}" * 100_000, "{}"])
def test_json_that_names_no_field_is_text(text: str) -> None:
    assert read_notes(text).fields == {}
    assert read_notes(text).rest == text


def test_typed_lines_are_facts_wherever_they_stand() -> None:
    text = "I think.\n- **Result:** x = 4\nresult of it: no\nDECISION: stop\nFact:\nvalue\uff1a7"
    assert list(typed_lines(text)) == ["Result: x = 4", "Decision: stop", "Value: 7"]


def test_the_marks_of_lists_are_left_out_and_signs_are_not() -> None:
    assert list(bare_lines("- a\n 2) b\n* \n-3 degrees\n---\n\u2022 c")) == ["a", "b", "-3 degrees", "c"]


def test_two_spellings_of_one_fact_are_one_and_two_facts_are_two() -> None:
    assert fact_key("The  Wall has four gates.") == fact_key("The wall has four Gates")
    for one, other in [("x = 3", "x = -3"), ("5 mW", "5 MW"), ("3.5", "35"), ("x\u00b2 is 4", "x2 is 4"), ("a", "b")]:
        assert fact_key(one) != fact_key(other)


@given(st.text(max_size=400))
def test_nothing_that_was_written_is_lost(text: str) -> None:
    notes = read_notes(text)
    kept = notes.rest + "".join(notes.fields.values())
    if not notes.fields:
        assert notes.rest == "\n".join(text.splitlines()).strip()
    assert sum(map(str.isdigit, kept)) <= sum(map(str.isdigit, text))


def test_long_garbage_is_read_in_linear_time() -> None:
    for unit in ("- ", "a:", "**", "Progress", "\uff1a", '"', "x" * 50 + ":\n"):
        read_notes(unit * 40_000)

"""Carryovers keep the required parts, always fit their size, and report the parts that they dropped."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasond_server.context.carryover import (
    NOTES_EXAMPLE,
    PLAIN_EXAMPLE,
    Carryover,
    Compression,
    NoteField,
    compress,
    compute_fact_key,
    read_bare_lines,
    read_notes,
    read_typed_lines,
)
from reasond_server.context.replies import ParsedReply, TagParser
from reasond_server.context.tags import neutralize
from reasond_server.llm.counting import ByteCounter, WordPieceCounter
from reasond_server.types import CarryoverMode, Dropped

COUNTER = WordPieceCounter()
MODES = list(CarryoverMode)


def parse(text: str, *, is_stop: bool = True) -> ParsedReply:
    parser = TagParser()
    parser.feed(text)
    parser.close(is_stop=is_stop)
    return parser.result


def make(
    text: str,
    before: Carryover | None = None,
    *,
    mode: CarryoverMode = CarryoverMode.HYBRID,
    summary: str | None = None,
    failure: str = "",
    limit: int = 512,
) -> Compression:
    return compress(
        before or Carryover(mode=mode),
        written=parse(text),
        summary=None if summary is None else parse(summary),
        failure=failure,
        has_own_call=summary is not None,
        counter=COUNTER,
        limit=limit,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "copied",
    [
        NOTES_EXAMPLE,
        PLAIN_EXAMPLE,
        "lines Current Strategy:, Key Findings:, Progress:, Next Steps:, Unresolved:".removeprefix("lines "),
        NOTES_EXAMPLE.replace("\n", "  \n\n"),
    ],
)
def test_a_copied_example_is_no_note(copied: str, mode: CarryoverMode) -> None:
    made = make(f"The bridge has two gates. <continue>{copied}</continue>", mode=mode)
    assert "The bridge has two gates." in made.text
    assert "wall" not in made.text
    assert "Strategy" not in made.text
    if mode is not CarryoverMode.TAIL:
        assert made.report.fallback_reason == "the notes only repeated the example of the prompt"


def test_a_note_beside_a_copied_example_is_kept() -> None:
    made = make(f"Hm. <continue>{NOTES_EXAMPLE}\nProgress: the bridge has two gates</continue>")
    assert made.carryover.fields == {NoteField.PROGRESS: "the bridge has two gates"}
    assert made.carryover.facts == ()
    assert made.report.fallback_reason == ""


def test_hybrid_pins_the_head_keeps_fields_and_facts_and_fills_up_with_the_tail() -> None:
    first = make("I plan to count. <continue>Key Findings: one\nProgress: begun\nloose end</continue>")
    assert first.text == "Opening:\nI plan to count.\nKey Findings:\n- one\nProgress: begun\nloose end"
    second = make("More thought. <continue>Key Findings: two\nNext Steps: east</continue>", first.carryover)
    assert second.text.splitlines() == [
        "Opening:", "I plan to count.", "Key Findings:", "- one", "- two", "Progress: begun", "loose end",
        "Next Steps: east", "Latest:", "More thought.",
    ]  # fmt: skip


def test_in_hybrid_the_notes_begin_as_those_of_the_window_before_up_to_the_new_fact() -> None:
    said = (
        "Plan. <continue>Current Strategy: look at gate {0}\nKey Findings: gate {0} is shut\nProgress: {0}</continue>"
    )
    carryover, before = None, ""
    for number in range(1, 6):
        one = make(said.format(number), carryover)
        known, _, rest = before.partition("\nCurrent Strategy:")
        assert one.text.startswith(known)
        assert bool(rest) is (number > 1)
        carryover, before = one.carryover, one.text


def test_a_finding_that_is_known_is_not_added_again() -> None:
    first = make("<continue>Key Findings:\n- The wall has four gates.\n- x = 3</continue>")
    second = make(
        "<continue>Key Findings:\n- the wall has four Gates\n- The Wall  has four gates\n- x = -3</continue>",
        first.carryover,
    )
    assert second.carryover.facts == ("The wall has four gates.", "x = 3", "the wall has four Gates", "x = -3")


def test_a_long_finding_stays_whole_where_there_is_room_and_is_cut_beside_many() -> None:
    finding = " ".join(f"word{number}" for number in range(40))
    one = make(f"<continue>Key Findings: {finding}</continue>")
    assert one.carryover.facts == (finding,)
    lines = "\n".join(f"- {number} {finding}" for number in range(9))
    assert all(
        len(fact) < len(finding) for fact in make(f"<continue>Key Findings:\n{lines}</continue>").carryover.facts
    )


def test_typed_lines_are_facts_without_a_tag() -> None:
    first = make("Long thought.\nResult: x = 4\nand so on")
    assert first.carryover.facts == ("Result: x = 4",)


def test_the_oldest_facts_are_kept_and_those_without_room_are_told() -> None:
    carryover = Carryover(mode=CarryoverMode.HYBRID)
    for number in range(60):
        one = make(f"<continue>Key Findings: gate {number} stands in the wall</continue>", carryover)
        carryover = one.carryover
        assert COUNTER.count_text(one.text) <= 512
    assert carryover.facts[0] == "gate 0 stands in the wall"
    assert len(carryover.facts) < 60
    # The last fact is still in the tail of its own window.
    assert carryover.tail == "gate 59 stands in the wall"
    next_one = make("<continue>Progress: on</continue>", carryover)
    assert next_one.report.dropped == (Dropped(part="tail", tokens=COUNTER.count_text(carryover.tail)),)


def test_summary_mode_carries_the_fields_alone_and_the_findings_of_the_last_summary() -> None:
    first = make("Thought. <continue>Key Findings: one\nProgress: p\nloose</continue>", mode=CarryoverMode.SUMMARY)
    assert first.text == "Key Findings:\n- one\nProgress: p\nloose"
    second = make("Thought. <continue>Key Findings: two</continue>", first.carryover)
    assert second.text == "Key Findings:\n- two\nProgress: p\nloose"
    assert not second.report.fallback_reason


@pytest.mark.parametrize("mode", [CarryoverMode.HYBRID, CarryoverMode.SUMMARY])
def test_without_a_summary_facts_and_tail_are_carried_and_said_so(mode: CarryoverMode) -> None:
    one = make("Thinking on.\nResult: 7\nthen", mode=mode, failure="the summary was empty")
    assert "Result: 7" in one.carryover.facts
    assert "then" in one.text.splitlines()
    assert one.report.fallback_reason == "the summary was empty"


def test_notes_without_fields_are_a_fallback_in_summary_mode_only() -> None:
    assert make("<continue>seen</continue>", mode=CarryoverMode.SUMMARY).report.fallback_reason
    assert make("<continue>seen</continue>", mode=CarryoverMode.SUMMARY).text == "seen"
    assert not make("<continue>seen</continue>").report.fallback_reason


def test_a_summary_of_its_own_call_adds_its_fields() -> None:
    one = make("Cut off in the mid", summary="<continue>Progress: half\nKey Findings: four gates</continue>")
    assert one.carryover.fields == {NoteField.PROGRESS: "half"}
    assert one.carryover.facts == ("four gates",)
    assert one.report.has_own_call


def test_tail_is_the_notes_or_the_end_of_everything() -> None:
    assert make("Loose. <continue>North.</continue>", mode=CarryoverMode.TAIL).text == "North."
    text = " ".join(f"w{number}" for number in range(900))
    one = make(text, mode=CarryoverMode.TAIL)
    assert text.endswith(one.text)
    assert one.report.before_tokens == COUNTER.count_text(text)
    assert one.report.after_tokens == 512
    assert one.report.dropped == (Dropped(part="text", tokens=one.report.before_tokens - 512),)


def test_long_fields_are_cut_level_and_the_cut_is_told() -> None:
    one = make(f"<continue>Progress: {'word ' * 900}\nNext Steps: go east</continue>")
    assert one.carryover.fields[NoteField.NEXT_STEPS] == "go east"
    assert 80 <= COUNTER.count_text(one.carryover.fields[NoteField.PROGRESS]) <= 128
    assert [drop.part for drop in one.report.dropped] == ["fields"]


def test_a_stricter_counter_gets_less_of_every_part_rather_than_the_end_of_the_text() -> None:
    one = make(f"Plan first. <continue>Key Findings: four gates\nProgress: on\n{'seen ' * 600}</continue>")
    text = one.carryover.render(counter=ByteCounter(), limit=512)
    assert len(text.encode()) <= 512
    assert "- four gates" in text
    assert "Plan first." in text


class Crowded(WordPieceCounter):
    """Counts many more tokens for a whole text than for the sum of its parts."""

    def count_text(self, text: str) -> int:
        return super().count_text(text) * (1 + text.count("\n") // 2)


@pytest.mark.parametrize("limit", [8, 16, 40, 90, 200, 400])
def test_a_counter_that_counts_more_for_the_whole_than_for_the_parts_still_gets_its_limit(limit: int) -> None:
    facts = "\n".join(f"gate {number}" for number in range(20))
    text = f"Plan. <continue>loose\nKey Findings:\n{facts}\nProgress: on\nNext Steps: east</continue>"
    one = make(text)
    crowded = Crowded()
    assert crowded.count_text(one.carryover.render(counter=crowded, limit=limit)) <= limit


UNITS = st.sampled_from([
    "word ", "\n", "Key Findings: a\n", "- b c\n", "Progress:", "Result: 4\n", "<", "notes>", "</notes>", "x" * 30,
    "\U0001f600", "<answer>", "<continue>", "</continue>", "\u4f60\u597d", "&lt;", "Unresolved: ?\n", "<|im_start|>",
])  # fmt: skip
TEXTS = st.lists(st.tuples(UNITS | st.text(max_size=4), st.integers(1, 300)), max_size=6).map(
    lambda rows: "".join(unit * times for unit, times in rows)
)


@pytest.mark.slow
@settings(max_examples=120)
@given(
    windows=st.lists(st.tuples(TEXTS, TEXTS | st.none()), min_size=1, max_size=4),
    mode=st.sampled_from(MODES),
    limit=st.integers(512, 2048),
    counter=st.sampled_from([WordPieceCounter(), ByteCounter()]),
)
def test_whatever_was_written_the_notes_fit_and_open_no_tag(
    windows: list[tuple[str, str | None]], mode: CarryoverMode, limit: int, counter: WordPieceCounter | ByteCounter
) -> None:
    carryover = Carryover(mode=mode)
    facts: tuple[str, ...] = ()
    for text, summary in windows:
        one = compress(
            carryover,
            written=parse(text, is_stop=False),
            summary=None if summary is None else parse(summary),
            counter=counter,
            limit=limit,
        )
        carryover = one.carryover
        assert one.report.after_tokens == counter.count_text(one.text) <= limit
        assert neutralize(one.text) == one.text
        assert carryover.render(counter=counter, limit=limit) == one.text
        assert all(drop.tokens > 0 for drop in one.report.dropped)
        if mode is CarryoverMode.HYBRID:
            assert tuple(carryover.facts[: len(facts)]) == facts
            facts = tuple(carryover.facts)


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
        NoteField.STRATEGY: "count by hand",
        NoteField.FINDINGS: "- north has one gate\n- south has two",
        NoteField.PROGRESS: "half way",
        NoteField.NEXT_STEPS: "go east",
        NoteField.UNRESOLVED: "is the west shut?",
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
    assert read_notes(line).fields == {NoteField.NEXT_STEPS: "go east"}


def test_a_field_goes_on_to_the_next_label_and_twice_is_joined() -> None:
    notes = read_notes("Progress: one\n\ntwo: three\nUnresolved: x\nProgress: four")
    assert notes.fields == {NoteField.PROGRESS: "one\n\ntwo: three\nfour", NoteField.UNRESOLVED: "x"}


def test_what_belongs_to_no_field_is_kept_as_it_is() -> None:
    notes = read_notes("Hm, at 12:30 it rains.\nUnknown label: yes\nProgress: some")
    assert notes.rest == "Hm, at 12:30 it rains.\nUnknown label: yes"
    assert read_notes("no label at all").fields == {}


def test_fields_that_say_nothing_are_missing() -> None:
    assert read_notes("Progress:\nNext Steps:   \nUnresolved: **").fields == {}


def test_a_json_object_is_read() -> None:
    text = '{"current_strategy": "count", "Key Findings": ["a", {"b": 1}], "progress": null, "unresolved": 3, "x": "y"}'
    notes = read_notes(text)
    assert notes.fields == {NoteField.STRATEGY: "count", NoteField.FINDINGS: 'a\n{"b": 1}', NoteField.UNRESOLVED: "3"}


@pytest.mark.parametrize("text", ['{"x": 1}', "{broken}", "{" * 100_000 + "}" * 100_000, "{}"])
def test_json_that_names_no_field_is_text(text: str) -> None:
    assert read_notes(text).fields == {}
    assert read_notes(text).rest == text


def test_typed_lines_are_facts_wherever_they_stand() -> None:
    text = "I think.\n- **Result:** x = 4\nresult of it: no\nDECISION: stop\nFact:\nvalue\uff1a7"
    assert list(read_typed_lines(text)) == ["Result: x = 4", "Decision: stop", "Value: 7"]


def test_the_marks_of_lists_are_left_out_and_signs_are_not() -> None:
    assert list(read_bare_lines("- a\n 2) b\n* \n-3 degrees\n---\n\u2022 c")) == ["a", "b", "-3 degrees", "c"]


def test_two_spellings_of_one_fact_are_one_and_two_facts_are_two() -> None:
    assert compute_fact_key("The  Wall has four gates.") == compute_fact_key("The wall has four Gates")
    for one, other in [("x = 3", "x = -3"), ("5 mW", "5 MW"), ("3.5", "35"), ("x\u00b2 is 4", "x2 is 4"), ("a", "b")]:
        assert compute_fact_key(one) != compute_fact_key(other)


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

"""Reads the prompt of the demo model, and writes replies without tools: an answer, findings, or points for candidates.

The last user message has tagged sections, or is a bare question. Each tag is alone on its line: `<question>`,
`<notes>`, `<material>`, `<passage segment="2" of="7">`, and their closing tags. Each `<passage number="1">` or
`<passage name="candidate">` is a candidate to be judged, and `<passage name="draft">` is a draft of the answer; a
passage with another name is ignored. A tag may have a mark of small letters after its name; then only the closing tag
with the same mark ends the section. Text outside the sections has instructions for other models and is ignored.

A reply is reasoning, then `<answer>…</answer>` or `<continue>…</continue>`, within a limit of tokens.

Candidates are judged by computation. A candidate with the right result is right; a candidate with another result, or
with a false equation, is wrong. Any other candidate is judged by its number of words from the question, with at most 6
of 10 points, because shared words do not show that it is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from reasond_server.demo.arithmetic import (
    NotArithmeticError,
    UncomputableError,
    evaluate,
    find_numbers,
    has_value,
    is_value,
)
from reasond_server.demo.computation import Worked, compute
from reasond_server.demo.extraction import count_shared, find_content_words, rank, split_question, split_sentences
from reasond_server.llm.model import Message, Role, TokenCounter
from reasond_server.types.values import value

_OPENING = re.compile(
    r"<(question|notes|material|passage)( [a-z]{1,64})?"
    r'(?: segment="(\d{1,9})" of="(\d{1,9})"| number="(\d{1,4})"| name="([a-z_]{1,32})")?>'
)

_CANDIDATE = "candidate"
_DRAFT = "draft"
_HAS_QUESTION = re.compile(r"\s*<(?:question|material)(?: [a-z]{1,64})?>[^\S\n]*\n")


@value
class Prompt:
    """The sections; a missing section is empty. `segment` and `segment_count` belong to the passage, 0 without one.

    `candidates` are the texts to be judged, in order, and `draft` is a draft of the answer; they are not in `passage`.
    """

    question: str = ""
    notes: str = ""
    material: str = ""
    passage: str = ""
    segment: int = 0
    segment_count: int = 0
    is_reading: bool = False
    candidates: tuple[str, ...] = ()
    draft: str = ""


def is_question(content: str) -> bool:
    """Return whether a message begins with a question section."""
    return _HAS_QUESTION.match(content) is not None


def read_prompt(messages: Sequence[Message]) -> Prompt:
    """Return the sections of the last user message with a question section, else the last one as the question."""
    said = [message.content for message in messages if message.role is Role.USER]
    # Messages between two calls of one question, such as a demand for the answer, have no sections.
    content = next((one for one in reversed(said) if is_question(one)), said[-1] if said else "")
    sections: dict[str, list[str]] = {}
    segment = segment_count = 0
    closing = ""
    current: list[str] = []
    candidates: list[list[str]] = []
    draft: list[str] = []
    for line in content.splitlines():
        mark = line.strip()
        if closing:
            if mark == closing:
                closing = ""
            else:
                current.append(line)
        elif opening := _OPENING.fullmatch(mark):
            closing = f"</{opening[1]}{opening[2] or ''}>"
            if opening[6] and opening[6] != _CANDIDATE:
                current = draft if opening[6] == _DRAFT else []
                continue
            if opening[5] or opening[6]:
                candidates.append(current := [])
                continue
            current = sections.setdefault(opening[1], [])
            if opening[1] == "passage":
                segment, segment_count = int(opening[3] or 1), int(opening[4] or 1)
    if not sections:
        return Prompt(question=content)
    texts = {name: "\n".join(lines) for name, lines in sections.items()}
    return Prompt(
        **texts,
        segment=segment,
        segment_count=segment_count,
        is_reading="passage" in sections,
        candidates=tuple("\n".join(lines) for lines in candidates),
        draft="\n".join(draft),
    )


REFUSAL = (
    "This needs a language model: provider in the [llm] section of config.toml selects one. "
    "The embedded demo model works out arithmetic, percentages and interest, and answers questions about a text "
    "that comes with them."
)
SILENCE = "The text does not say."
NO_FINDINGS = "No findings yet."

_MAX_FINDINGS = 6
# Less than the smallest carryover of bounded_context, 512 tokens, so that no finding is cut.
_MAX_FINDINGS_TOKENS = 360
_MAX_ANSWER_SENTENCES = 3
_CLOSE_TO_BEST = 0.8
_MAX_SHOWN_WORDS = 8
_MAX_STEP_CHARACTERS = 300
_MAX_STEPS = 20

_OWN_REASONING = re.compile(rf"Segment \d+ of \d+: .*|{re.escape(NO_FINDINGS)}|Opening:|Key Findings:|Latest:")
_OWN_TAG = re.compile(r"(?:<|&lt;)/?(?:answer|continue)>")
_RESERVED = re.compile(r"<(?=\s*/?\s*(?:answer|continue|question|notes|material|passage|think)\b)", re.IGNORECASE)


def write_reply(prompt: Prompt, *, counter: TokenCounter, max_tokens: int) -> str:
    """Return the whole reply to `prompt`, within `max_tokens` if possible.

    If the best sentence of an answer alone exceeds the limit, the answer is returned whole. The limit then cuts it
    before its closing tag, so that it does not count as a complete answer. Findings are cut to fit.
    """
    writer = _Writer(counter, max_tokens)
    if prompt.candidates:
        return _write_judgement(prompt, writer)
    asked, text = split_question(prompt.question)
    if worked := compute(asked):
        return _write_worked(worked, writer)
    words = find_content_words(asked)
    noted = _read_notes(prompt.notes)
    has_text = bool(text or prompt.notes.strip() or prompt.material.strip() or prompt.is_reading)
    if not words or not has_text:
        return writer.write("", "answer", [REFUSAL])
    if prompt.is_reading:
        return _write_findings(prompt, words, noted, writer)
    return _write_answer(words, [*noted, *split_sentences(prompt.material), *split_sentences(text)], writer)


def _read_notes(notes: str) -> list[str]:
    """Return the sentences of the carryover, without this model's own reasoning and tags."""
    lines = (_OWN_TAG.sub("", line).strip() for line in notes.splitlines())
    return split_sentences("\n\n".join(line for line in lines if not _OWN_REASONING.fullmatch(line)))


def _write_worked(worked: Worked, writer: _Writer) -> str:
    steps = [step for step in worked.steps if len(step) <= _MAX_STEP_CHARACTERS][:_MAX_STEPS]
    reasoning = "\n".join(f"Step {number}: {step}" for number, step in enumerate(steps, start=1))
    return writer.write(reasoning, "answer", [worked.answer])


def _write_judgement(prompt: Prompt, writer: _Writer) -> str:
    """Return a reply with points in the requested format: `N` for one candidate, `1: N, 2: N` for several."""
    judged = judge(prompt.question, prompt.candidates)
    reasoning = "\n".join(f"{number}: {reason}." for number, (_, reason) in enumerate(judged, start=1))
    if len(judged) == 1:
        return writer.write(reasoning, "answer", [str(judged[0][0])])
    points = ", ".join(f"{number}: {points}" for number, (points, _) in enumerate(judged, start=1))
    return writer.write(reasoning, "answer", [points])


def _write_findings(prompt: Prompt, words: Sequence[str], noted: Sequence[str], writer: _Writer) -> str:
    """Return a reply with the best sentences of the notes and of the passage."""
    best = rank([*noted, *split_sentences(prompt.passage)], words, limit=_MAX_FINDINGS)
    old = set(noted)
    new = sum(one.sentence not in old for one in best)
    what = "1 new sentence bears" if new == 1 else f"{new} new sentences bear"
    reasoning = f"Segment {prompt.segment} of {prompt.segment_count}: {what} on the question."
    lines = [one.sentence for one in best] or [NO_FINDINGS]
    # Best last, because the tail of the notes is carried to the next window.
    return writer.write(reasoning, "continue", lines, best_last=True, body_tokens=_MAX_FINDINGS_TOKENS)


def _write_answer(words: Sequence[str], candidates: Sequence[str], writer: _Writer) -> str:
    """Return an answer with the best sentence and those with nearly the same score."""
    best = rank(candidates, words, limit=_MAX_ANSWER_SENTENCES)
    shown = ", ".join(words[:_MAX_SHOWN_WORDS])
    if not best:
        return writer.write(f"No sentence speaks of: {shown}.", "answer", [SILENCE])
    chosen = [one.sentence for one in best if one.score >= _CLOSE_TO_BEST * best[0].score]
    reasoning = f"Sentences that were ranked: {len(candidates)}, by the words: {shown}. The best answers the question."
    return writer.write(reasoning, "answer", chosen)


class _Writer:
    """Fits a reply into a number of tokens: it drops the worst sentences, then the reasoning."""

    def __init__(self, counter: TokenCounter, max_tokens: int) -> None:
        self._counter = counter
        self._max_tokens = max_tokens

    def write(
        self, reasoning: str, tag: str, lines: Sequence[str], *, best_last: bool = False, body_tokens: int | None = None
    ) -> str:
        """Return the reply; `lines` are ordered best first, and at least one of them is kept."""
        kept = [_RESERVED.sub("&lt;", line) for line in lines]
        for lead in dict.fromkeys((f"{reasoning}\n" if reasoning else "", "")):
            room = self._max_tokens - self._counter.count_text(f"{lead}<{tag}></{tag}>")
            limit = room if body_tokens is None else min(room, body_tokens)
            fitting = self._select_fitting(kept, limit)
            if fitting:
                break
        else:
            fitting = [kept[0] if tag == "answer" else self._counter.head(kept[0], room)]
        body = "\n".join(reversed(fitting) if best_last else fitting)
        return f"{lead}<{tag}>{body}</{tag}>"

    def _select_fitting(self, lines: Sequence[str], limit: int) -> list[str]:
        """Return as many of the first `lines` as fit into `limit` tokens, with a line break after each."""
        fitting: list[str] = []
        for line in lines:
            limit -= self._counter.count_text(line) + 1
            if limit < -1:
                break
            fitting.append(line)
        return fitting


RIGHT = 10
ON_THE_WAY = 8
WRONG = 0
_MOST_FOR_WORDS = 6
_MAX_JUDGED_CHARACTERS = 20_000
_MAX_EQUATIONS = 40
_FINAL = "Final answer:"
_EQUATION = re.compile(
    r"(?<![\w.])([\d(][\d., \t()+*/^%-]{1,200}?)=[ \t]{0,3}(-?\d[\d,]{0,60}(?:\.\d{1,60})?)"
    r"(?!\.?\d|[\w/^*%]|[ \t]{0,3}[-+*/^%(])"
)


@value
class _Equation:
    """An equation of a thought, its right side, and whether it is true."""

    text: str
    right: str
    holds: bool


def judge(question: str, candidates: Sequence[str]) -> list[tuple[int, str]]:
    """Return the points of each candidate, 0 to 10, with a short reason."""
    asked, _ = split_question(question)
    worked = compute(asked)
    words = find_content_words(asked)
    return [_judge_one(candidate[:_MAX_JUDGED_CHARACTERS], worked, words) for candidate in candidates]


def _judge_one(candidate: str, worked: Worked | None, words: Sequence[str]) -> tuple[int, str]:
    equations = _find_equations(candidate)
    if wrong := [one.text for one in equations if not one.holds]:
        return WRONG, f"{wrong[0]} does not hold"
    if worked is not None and (results := find_numbers(worked.answer)) and worked.steps:
        final = candidate.rpartition(_FINAL)[2] if _FINAL in candidate else ""
        if final:
            is_right = has_value(final, float(results[0]))
            return (RIGHT, "the result is right") if is_right else (WRONG, f"the result is {worked.answer}")
        if any(has_value(one.right, float(results[0])) for one in equations):
            return RIGHT, "the result is right"
        if equations:
            return ON_THE_WAY, "what is computed holds"
    count = count_shared(candidate.replace(_FINAL, ""), words)
    return _MOST_FOR_WORDS * count // max(len(words), 1), f"{count} of {len(words)} words of the question"


def _find_equations(text: str) -> list[_Equation]:
    """Return the equations that can be checked."""
    found = []
    for match in islice(_EQUATION.finditer(text), _MAX_EQUATIONS):
        try:
            evaluation = evaluate(match[1].strip())
            value = float(evaluation.value)
        except (NotArithmeticError, UncomputableError, OverflowError):
            continue
        if evaluation.steps:
            right = match[2].replace(",", "")
            holds = is_value(right, value)
            found.append(_Equation(text=" ".join(match[0].split()), right=right, holds=holds))
    return found

"""Replies of the demo model without tools: an answer, findings, or points for candidates.

A reply is reasoning, then `<answer>…</answer>` or `<continue>…</continue>`, within a limit of tokens.

Candidates are judged by computation. A candidate with the right result is right; a candidate with another result, or
with a false equation, is wrong. Any other candidate is judged by its number of words from the question, with at most 6
of 10 points, because shared words do not show that it is right.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from reasond_server.demo.arithmetic import NotArithmeticError, evaluate
from reasond_server.demo.computation import compute
from reasond_server.demo.extraction import count_shared, find_content_words, rank, split_question, split_sentences
from reasond_server.demo.numerals import UncomputableError, find_numbers, has_value, is_value
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.demo.computation import Worked
    from reasond_server.demo.prompt import Prompt
    from reasond_server.llm.model import TokenCounter


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

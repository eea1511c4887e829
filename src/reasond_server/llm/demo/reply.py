"""What the demo model writes: reasoning, then `<answer>…</answer>` or `<continue>…</continue>`, within a limit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reasond_server.llm.demo.computation import compute
from reasond_server.llm.demo.judging import judge
from reasond_server.llm.demo.ranking import content_words, rank
from reasond_server.llm.demo.sentences import sentences, split_question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.demo.prompt import Prompt
    from reasond_server.llm.demo.worked import Worked
    from reasond_server.llm.model import TokenCounter

REFUSAL = (
    "This needs a language model: provider in the [llm] section of config.toml selects one. "
    "The embedded demo model works out arithmetic, percentages and interest, and answers questions about a text "
    "that comes with them."
)
SILENCE = "The text does not say."
NO_FINDINGS = "No findings yet."

_MAX_FINDINGS = 6
# Within the smallest carryover of bounded_context, 512 tokens, so that no finding is cut in half.
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
    """Return the whole reply to `prompt`, within `max_tokens` if it can be.

    An answer whose best sentence alone is longer is returned whole: the limit then cuts it before its closing tag,
    and half an answer does not pass for one. Findings are cut to fit.
    """
    writer = _Writer(counter, max_tokens)
    if prompt.candidates:
        return _write_judgement(prompt, writer)
    asked, text = split_question(prompt.question)
    if worked := compute(asked):
        return _write_worked(worked, writer)
    words = content_words(asked)
    noted = _read_notes(prompt.notes)
    has_text = bool(text or prompt.notes.strip() or prompt.material.strip() or prompt.is_reading)
    if not words or not has_text:
        return writer.write("", "answer", [REFUSAL])
    if prompt.is_reading:
        return _write_findings(prompt, words, noted, writer)
    return _write_answer(words, [*noted, *sentences(prompt.material), *sentences(text)], writer)


def _read_notes(notes: str) -> list[str]:
    """Return the sentences of the carryover, without what this model wrote around them."""
    lines = (_OWN_TAG.sub("", line).strip() for line in notes.splitlines())
    return sentences("\n\n".join(line for line in lines if not _OWN_REASONING.fullmatch(line)))


def _write_worked(worked: Worked, writer: _Writer) -> str:
    steps = [step for step in worked.steps if len(step) <= _MAX_STEP_CHARACTERS][:_MAX_STEPS]
    reasoning = "\n".join(f"Step {number}: {step}" for number, step in enumerate(steps, start=1))
    return writer.write(reasoning, "answer", [worked.answer])


def _write_judgement(prompt: Prompt, writer: _Writer) -> str:
    """Give points in the forms that are asked for: `N` for one candidate, `1: N, 2: N` for several."""
    judged = judge(prompt.question, prompt.candidates)
    reasoning = "\n".join(f"{number}: {reason}." for number, (_, reason) in enumerate(judged, start=1))
    if len(judged) == 1:
        return writer.write(reasoning, "answer", [str(judged[0][0])])
    points = ", ".join(f"{number}: {points}" for number, (points, _) in enumerate(judged, start=1))
    return writer.write(reasoning, "answer", [points])


def _write_findings(prompt: Prompt, words: Sequence[str], noted: Sequence[str], writer: _Writer) -> str:
    """Keep the best of what was noted and what this passage says."""
    best = rank([*noted, *sentences(prompt.passage)], words, limit=_MAX_FINDINGS)
    old = set(noted)
    new = sum(one.sentence not in old for one in best)
    what = "1 new sentence bears" if new == 1 else f"{new} new sentences bear"
    reasoning = f"Segment {prompt.segment} of {prompt.segment_count}: {what} on the question."
    lines = [one.sentence for one in best] or [NO_FINDINGS]
    # Best last, because what is carried to the next window is the tail of the notes.
    return writer.write(reasoning, "continue", lines, best_last=True, body_tokens=_MAX_FINDINGS_TOKENS)


def _write_answer(words: Sequence[str], candidates: Sequence[str], writer: _Writer) -> str:
    """Answer with the best sentence, and with those that are nearly as good."""
    best = rank(candidates, words, limit=_MAX_ANSWER_SENTENCES)
    shown = ", ".join(words[:_MAX_SHOWN_WORDS])
    if not best:
        return writer.write(f"No sentence speaks of: {shown}.", "answer", [SILENCE])
    chosen = [one.sentence for one in best if one.score >= _CLOSE_TO_BEST * best[0].score]
    reasoning = f"Sentences that were ranked: {len(candidates)}, by the words: {shown}. The best answers the question."
    return writer.write(reasoning, "answer", chosen)


class _Writer:
    """Fits a reply into a number of tokens: drops the least sentences, then the reasoning."""

    def __init__(self, counter: TokenCounter, max_tokens: int) -> None:
        self._counter = counter
        self._max_tokens = max_tokens

    def write(
        self, reasoning: str, tag: str, lines: Sequence[str], *, best_last: bool = False, body_tokens: int | None = None
    ) -> str:
        """Return the reply; `lines` come best first, and at least one of them is kept."""
        kept = [_RESERVED.sub("&lt;", line) for line in lines]
        for lead in dict.fromkeys((f"{reasoning}\n" if reasoning else "", "")):
            room = self._max_tokens - self._counter.count_text(f"{lead}<{tag}></{tag}>")
            limit = room if body_tokens is None else min(room, body_tokens)
            fitting = self._fitting(kept, limit)
            if fitting:
                break
        else:
            fitting = [kept[0] if tag == "answer" else self._counter.head(kept[0], room)]
        body = "\n".join(reversed(fitting) if best_last else fitting)
        return f"{lead}<{tag}>{body}</{tag}>"

    def _fitting(self, lines: Sequence[str], limit: int) -> list[str]:
        """Return the longest beginning of `lines` that fits into `limit` tokens, a line break counted for each."""
        fitting: list[str] = []
        for line in lines:
            limit -= self._counter.count_text(line) + 1
            if limit < -1:
                break
            fitting.append(line)
        return fitting

"""What one window of bounded context hands to the next, and how the progress of a window becomes it.

At most m = carryover_size tokens, labels included, made of up to four parts:

| part   | what                                                                 | hybrid | summary | tail |
| head   | the beginning of the first window's reasoning, pinned, <= 256 tokens | m/8    | -       | -    |
| fields | strategy, progress, next steps, unresolved; the latest of each       | m/4    | m/2     | -    |
| facts  | key findings and typed lines, one a line                             | 3m/8   | m/2     | -    |
| tail   | the end of what the window wrote                                     | rest   | -       | m    |

In hybrid, facts are only ever appended: one that is there already, spelt alike, is not added, and one that does not fit
any more goes into the tail of its own window and no further; they stand before the other fields, which change, so that
a server that caches prefixes has them at hand. In summary mode each summary's findings replace the last.
Where a summary is missing, facts and tail are what is carried in either mode, and the report says so.

Sources: seed 000 FR-5 and Feature 3 (the fields); Delethink, arXiv 2510.06557 (head and tail).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reasond_server.context.carryover_fields import Field, fact_key, read_notes, typed_lines
from reasond_server.context.tags import TagKind, neutralize
from reasond_server.types import CarryoverMode, CarryoverReport, Dropped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.context.replies import Parsed
    from reasond_server.llm.model import TokenCounter

_MOST_HEAD_TOKENS = 256
# Where two parts meet, a tokenizer may count a few tokens more than for the two alone.
_JOINT_TOKENS = 8
_HEAD_LABEL = "Opening:"
_TAIL_LABEL = "Latest:"
_NO_FIELDS = "the notes had none of the five fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carryover:
    """The parts, neutralised. `is_begun` tells that a window has been compressed, so that no other is the first."""

    mode: CarryoverMode
    head: str = ""
    fields: Mapping[Field, str] = field(default_factory=dict)
    facts: Sequence[str] = ()
    tail: str = ""
    is_begun: bool = False

    def rendered(self, *, counter: TokenCounter, limit: int) -> str:
        """Return the notes as a window shows them, in at most `limit` tokens of `counter`."""
        whole = self.text
        return whole if counter.count_text(whole) <= limit else _fitted(self, counter=counter, limit=limit).made.text

    @property
    def text(self) -> str:
        """The parts as one text with their labels, however long."""
        parts = [f"{_HEAD_LABEL}\n{self.head}"] if self.head else []
        for name in self._order:
            if name is Field.FINDINGS and self.facts:
                parts.append("\n".join([f"{name}:", *(f"- {fact}" for fact in self.facts)]))
            elif self.fields.get(name):
                parts.append(f"{name}: {self.fields[name]}")
        if self.tail:
            parts.append(f"{_TAIL_LABEL}\n{self.tail}" if parts else self.tail)
        # Two harmless parts may join to what looks like a tag.
        return neutralize("\n".join(parts))

    @property
    def _order(self) -> Sequence[Field]:
        """The fields as they are shown: what only grows first, so that caches of prefixes know it again."""
        if self.mode is not CarryoverMode.HYBRID:
            return tuple(Field)
        return (Field.FINDINGS, *(name for name in Field if name is not Field.FINDINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """A new carryover, the notes that it gives, and the report on how it was made."""

    carryover: Carryover
    text: str
    report: CarryoverReport


def compress(
    before: Carryover,
    *,
    written: Parsed,
    summary: Parsed | None = None,
    failure: str = "",
    has_own_call: bool = False,
    counter: TokenCounter,
    limit: int,
) -> Compressed:
    """Return what the next window is given after one that wrote `written`.

    `summary` is what a call of its own made of it; `failure` why there is none though one was due. Time is linear in
    the texts and in `limit`.
    """
    draft, reason = (
        (_drafted_tail(before, written), "")
        if before.mode is CarryoverMode.TAIL
        else _drafted(before, written, summary, failure, counter=counter, limit=limit)
    )
    fitted = _fitted(draft, counter=counter, limit=limit)
    text = fitted.made.text
    report = CarryoverReport(
        before_tokens=counter.count_text(before.rendered(counter=counter, limit=limit))
        + counter.count_text(written.written),
        after_tokens=counter.count_text(text),
        dropped=_dropped(before, draft, fitted, counter),
        has_own_call=has_own_call,
        fallback_reason=reason,
    )
    return Compressed(carryover=fitted.made, text=text, report=report)


def _drafted_tail(before: Carryover, written: Parsed) -> Carryover:
    """Return the notes, or everything where none are marked: Delethink's raw tail."""
    notes = written.content.strip() if written.kind is TagKind.CONTINUE else ""
    return replace(before, tail=neutralize(notes or written.written), is_begun=True)


def _drafted(
    before: Carryover, written: Parsed, summary: Parsed | None, failure: str, *, counter: TokenCounter, limit: int
) -> tuple[Carryover, str]:
    """Return the parts before they are cut to size, and why the mode could not be kept."""
    is_hybrid = before.mode is CarryoverMode.HYBRID
    marked = written.content.strip() if written.kind is TagKind.CONTINUE else ""
    raw = neutralize(written.text.strip() if marked else written.written)
    notes = read_notes(neutralize(marked))
    told = read_notes(neutralize(summary.content.strip() or summary.written) if summary else "")
    new = {**notes.fields, **told.fields}
    findings = [*notes.findings, *told.findings]
    reason = failure or ("" if is_hybrid or new else _NO_FIELDS)
    is_replaced = not is_hybrid and Field.FINDINGS in new
    typed = typed_lines(f"{raw}\n{notes.rest}\n{told.rest}") if is_hybrid or reason else ()
    facts = _appended(
        () if is_replaced else before.facts, [*findings, *typed], counter=counter, most=_most_of_fact(limit)
    )
    head = before.head
    if is_hybrid and not before.is_begun:
        head = counter.head(raw, _head_share(limit))
        raw = raw[len(head) :]
    tail = "\n".join(filter(None, (raw.strip(), notes.rest, told.rest))) if is_hybrid or reason else ""
    fields = dict(before.fields) | {name: text for name, text in new.items() if name is not Field.FINDINGS}
    draft = replace(before, head=head, fields=fields, facts=facts, tail=tail, is_begun=True)
    return draft, reason


def _appended(facts: Sequence[str], new: Sequence[str], *, counter: TokenCounter, most: int) -> Sequence[str]:
    """Return `facts` and behind them those of `new` whose first `most` tokens are not among them, spelt alike."""
    known = {fact_key(fact): fact for fact in facts}
    for fact in new:
        whole = " ".join(fact.split())
        known.setdefault(fact_key(counter.head(whole, most)), whole)
    return tuple(known.values())


def _most_of_fact(limit: int) -> int:
    """Return the most tokens of one fact: a quarter of what all facts share."""
    return limit * 3 // 32


def _head_share(limit: int) -> int:
    return min(_MOST_HEAD_TOKENS, limit // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """Parts that fit together, and the facts that found no place among them."""

    made: Carryover
    overflow: str = ""


def _fitted(draft: Carryover, *, counter: TokenCounter, limit: int) -> _Fitted:
    """Return `draft` cut so that its text has at most `limit` tokens."""
    if draft.mode is CarryoverMode.TAIL:
        return _Fitted(made=replace(draft, tail=counter.tail(draft.tail, limit)))
    # A summary that could not be had leaves a tail, which needs room beside the fields.
    has_tail = draft.mode is CarryoverMode.HYBRID or bool(draft.tail)
    fields_share = limit // 4 if has_tail else limit // 2
    facts_share = limit * 3 // 8 if has_tail else limit // 2
    facts, overflow = _oldest(draft.facts, facts_share, most=_most_of_fact(limit), counter=counter)
    made = replace(
        draft,
        head=counter.head(draft.head, _head_share(limit)),
        fields=_level(draft.fields, fields_share, counter),
        facts=facts,
        tail="",
    )
    source = "\n".join(filter(None, (draft.tail, overflow))) if has_tail else ""
    taken = counter.count_text(made.text) + counter.count_text(f"\n{_TAIL_LABEL}\n") + _JOINT_TOKENS
    made = replace(made, tail=counter.tail(source, max(0, limit - taken)))
    return _Fitted(made=_squeezed(made, counter=counter, limit=limit), overflow=overflow)


def _oldest(facts: Sequence[str], share: int, *, most: int, counter: TokenCounter) -> tuple[Sequence[str], str]:
    """Return as many of the first facts as fit, none with more than `most` tokens, and the rest as lines."""
    kept: list[str] = []
    left = share
    for number, fact in enumerate(facts):
        clipped = counter.head(fact, most)
        left -= counter.count_text(f"- {clipped}\n")
        if left < 0:
            return tuple(kept), "\n".join(facts[number:])
        kept.append(clipped)
    return tuple(kept), ""


def _level(fields: Mapping[Field, str], share: int, counter: TokenCounter) -> Mapping[Field, str]:
    """Return the fields with the beginnings of the longest cut off level, so that all together fit."""
    sizes = {name: counter.count_text(text) for name, text in fields.items()}
    left, kept = share - sum(counter.count_text(f"\n{name}: ") for name in sizes), {}
    for done, name in enumerate(sorted(sizes, key=lambda one: (sizes[one], one))):
        room = max(0, left) // (len(sizes) - done)
        kept[name] = fields[name] if sizes[name] <= room else counter.head(fields[name], room)
        left -= min(sizes[name], room)
    return kept


def _squeezed(made: Carryover, *, counter: TokenCounter, limit: int) -> Carryover:
    """Return `made` with parts taken away, the tail first, until its text fits."""
    while (excess := counter.count_text(made.text) - limit) > 0:
        if made.tail:
            made = replace(made, tail=counter.tail(made.tail, counter.count_text(made.tail) - excess))
        elif made.facts:
            made = replace(made, facts=made.facts[:-1])
        elif made.fields:
            made = replace(made, fields=dict(list(made.fields.items())[:-1]))
        else:
            made = replace(made, head=counter.head(made.head, counter.count_text(made.head) - excess))
    return made


def _dropped(before: Carryover, draft: Carryover, fitted: _Fitted, counter: TokenCounter) -> Sequence[Dropped]:
    """Return what is not in the new carryover: of the window, of facts and fields, and of the tail before."""
    made = fitted.made
    carried = counter.count_text(made.tail)
    overflow = counter.count_text(fitted.overflow)
    clipped = sum(map(counter.count_text, draft.facts)) - sum(map(counter.count_text, made.facts)) - overflow
    fields = sum(counter.count_text(text) for text in draft.fields.values())
    fields -= sum(counter.count_text(text) for text in made.fields.values())
    lost = {
        "text": counter.count_text(draft.tail) - max(0, carried - overflow),
        "facts": max(0, overflow - carried) + max(0, clipped),
        "fields": fields,
        "tail": counter.count_text(before.tail),
    }
    return tuple(Dropped(part=part, tokens=tokens) for part, tokens in lost.items() if tokens > 0)

"""What one window of bounded context hands to the next, and how the progress of a window becomes it.

At most m = carryover_size tokens, labels included, made of up to four parts:

| part   | what                                                                 | hybrid | summary | tail |
| head   | the beginning of the first window's reasoning, pinned, <= 256 tokens | m/8    | -       | -    |
| fields | strategy, progress, next steps, unresolved; the latest of each       | m/4    | m/2     | -    |
| facts  | key findings and typed lines, one a line                             | 3m/8   | m/2     | -    |
| tail   | the end of what the window wrote                                     | rest   | -       | m    |

In hybrid, facts are appended and never removed. A fact that is there already, spelt alike, is not added. A fact that
does not fit any more is carried once, in the tail of the window that wrote it. The facts stand before the other
fields, because a server that caches prefixes reads only again what stands behind the first change. In summary mode the
findings of each summary replace those of the last one. Where a summary is missing, both modes carry facts and tail, and
the report says so.

Sources: seed 000 FR-5 and Feature 3 (the fields); Delethink, arXiv 2510.06557 (head and tail).

Fields are read leniently, as models write them: renamed, translated, over many lines, or as JSON. A field begins at a
line `label: value`, with or without marks of lists, headings and emphasis around the label, and goes on to the next
label. What stands before the first label, and a text without any, is kept as it is: nothing that a model wrote is lost.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond_server.context.tags import TagKind, neutralize
from reasond_server.types import CarryoverMode, CarryoverReport, Dropped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.context.replies import ParsedReply
    from reasond_server.llm.model import TokenCounter

_LABEL = re.compile(r"[ \t>#*_`\-\u2022\d.)\"'\[{]{0,16}([^\W\d_][^:\uFF1A=\n]{0,40}?)[ \t*_`\"'\]]{0,8}[:\uFF1A](.*)")
_TYPED = re.compile(
    r"(fact|result|value|definition|constraint|decision)[ \t*_`]{0,4}[:\uFF1A][ \t*_`]{0,4}(\S.*)", re.IGNORECASE
)
_BULLET = re.compile(r"(?:[-*\u2022\u2013+>]|\d{1,3}[.)])[ \t]+")
_EMPHASIS = "*_ \t"
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_CLOSING_MARKS = " \t.;,!\u3002"
_MOST_LINES = 20_000
_MOST_HEAD_TOKENS = 256
# Where two parts meet, a tokenizer may count a few tokens more than for the two alone.
_JOINT_TOKENS = 8
_HEAD_LABEL = "Opening:"
_TAIL_LABEL = "Latest:"
_NO_FIELDS = "the notes had none of the five fields"


class NoteField(StrEnum):
    """The five fields, in the order in which a model is asked for them; the values are the labels."""

    STRATEGY = "Current Strategy"
    FINDINGS = "Key Findings"
    PROGRESS = "Progress"
    NEXT_STEPS = "Next Steps"
    UNRESOLVED = "Unresolved"


_ALIASES: Final = MappingProxyType({
    NoteField.STRATEGY: (
        "current strategy", "strategy", "approach", "current approach", "plan", "method",
        "strategie", "aktuelle strategie", "vorgehen", "stratégie", "stratégie actuelle", "estrategia",
        "estrategia actual", "estratégia", "estratégia atual", "strategia", "стратегия", "текущая стратегия",
        "当前策略", "策略", "現在の戦略", "戦略",
    ),
    NoteField.FINDINGS: (
        "key findings", "findings", "key finding", "finding", "key facts", "facts", "key insights", "insights",
        "erkenntnisse", "wichtige erkenntnisse", "befunde", "découvertes", "principales découvertes",
        "hallazgos", "hallazgos clave", "descobertas", "principais descobertas", "risultati", "ключевые выводы",
        "выводы", "关键发现", "发现", "主な発見", "発見",
    ),
    NoteField.PROGRESS: (
        "progress", "progress so far", "status", "state", "current state", "done",
        "fortschritt", "stand", "progrès", "avancement", "progreso", "progresso", "прогресс", "进展", "进度", "進捗",
    ),
    NoteField.NEXT_STEPS: (
        "next steps", "next step", "next", "todo", "to do", "remaining steps",
        "nächste schritte", "prochaines étapes", "próximos pasos", "próximos passos", "prossimi passi",
        "следующие шаги", "下一步", "后续步骤", "次のステップ",
    ),
    NoteField.UNRESOLVED: (
        "unresolved", "unresolved questions", "open questions", "open question", "open issues", "challenges",
        "questions", "offene fragen", "ungelöst", "offen", "non résolu", "questions ouvertes", "sin resolver",
        "preguntas abiertas", "não resolvido", "questões em aberto", "irrisolto", "нерешённое", "нерешенное",
        "未解决", "未解决问题", "未解決",
    ),
})  # fmt: skip
_FIELD_OF: Final = MappingProxyType(
    {unicodedata.normalize("NFKC", alias): one for one, aliases in _ALIASES.items() for alias in aliases}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What was read: `fields` holds only those that say something, `rest` what belongs to none."""

    fields: Mapping[NoteField, str] = field(default_factory=dict)
    rest: str = ""

    @property
    def findings(self) -> Sequence[str]:
        """Each finding by itself, without the mark of a list."""
        return tuple(read_bare_lines(self.fields.get(NoteField.FINDINGS, "")))


def read_notes(text: str) -> Notes:
    """Return the fields of `text`; a field that comes twice is joined. Time is linear in `text`."""
    from_json = _read_json(text)
    if from_json is not None:
        return from_json
    rest: list[str] = []
    found: dict[NoteField, list[str]] = {}
    current = rest
    for line in text.splitlines()[:_MOST_LINES]:
        label = _LABEL.fullmatch(line)
        named = _FIELD_OF.get(_fold_label(label[1])) if label is not None else None
        if label is None or named is None:
            current.append(line)
            continue
        current = found.setdefault(named, [])
        current.append(label[2].lstrip(_EMPHASIS))
    fields = {name: "\n".join(lines).strip() for name, lines in found.items()}
    return Notes(fields={name: value for name, value in fields.items() if value}, rest="\n".join(rest).strip())


def read_typed_lines(text: str) -> Iterator[str]:
    """Yield the lines of `text` that say of what type they are, such as `Result: 42`, in one spelling."""
    for line in text.splitlines()[:_MOST_LINES]:
        found = _TYPED.fullmatch(_BULLET.sub("", line.strip(), count=1).lstrip("*_`"))
        if found is not None:
            yield f"{found[1].capitalize()}: {found[2].strip()}"


def read_bare_lines(text: str) -> Iterator[str]:
    """Yield the lines of `text` that say something, without the marks of lists."""
    for line in text.splitlines():
        bare = _BULLET.sub("", line.strip(), count=1).strip()
        if any(map(str.isalnum, bare)):
            yield bare


def fact_key_of(fact: str) -> str:
    """Return what two spellings of one fact have in common: blanks, closing marks and the case of long words differ.

    Short words keep their case, signs and digits stay: `5 mW` is not `5 MW`, and `x = -3` not `x = 3`.
    """
    joined = " ".join(unicodedata.normalize("NFC", fact).split()).rstrip(_CLOSING_MARKS)
    return _LONG_WORD.sub(lambda word: word[0].casefold(), joined)


def _fold_label(label: str) -> str:
    """Return a label as the aliases are written."""
    words = re.sub(r"[_*`\s]+", " ", unicodedata.normalize("NFKC", label)).strip()
    return words.casefold() if words.isascii() else unicodedata.normalize("NFKC", words.lower())


def _read_json(text: str) -> Notes | None:
    """Return the fields of a JSON object; None where `text` is none or names none of them."""
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return None
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    found: dict[NoteField, str] = {}
    for label, content in value.items():
        name = _FIELD_OF.get(_fold_label(label))
        if name is not None and (said := _spell_value(content)):
            found[name] = said
    return Notes(fields=found) if found else None


def _spell_value(value: object) -> str:
    """Return a JSON value as text, a list with a line for each of its values."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in value)
    return "" if value is None else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carryover:
    """The parts, neutralised. `is_begun` tells that a window has been compressed, so that no other is the first."""

    mode: CarryoverMode
    head: str = ""
    fields: Mapping[NoteField, str] = field(default_factory=dict)
    facts: Sequence[str] = ()
    tail: str = ""
    is_begun: bool = False

    def render(self, *, counter: TokenCounter, limit: int) -> str:
        """Return the notes as a window shows them, in at most `limit` tokens of `counter`."""
        whole = self.text
        return whole if counter.count_text(whole) <= limit else _fit(self, counter=counter, limit=limit).made.text

    @property
    def text(self) -> str:
        """The parts as one text with their labels, however long."""
        parts = [f"{_HEAD_LABEL}\n{self.head}"] if self.head else []
        for name in self._order:
            if name is NoteField.FINDINGS and self.facts:
                parts.append("\n".join([f"{name}:", *(f"- {fact}" for fact in self.facts)]))
            elif self.fields.get(name):
                parts.append(f"{name}: {self.fields[name]}")
        if self.tail:
            parts.append(f"{_TAIL_LABEL}\n{self.tail}" if parts else self.tail)
        # Two harmless parts may join to what looks like a tag.
        return neutralize("\n".join(parts))

    @property
    def _order(self) -> Sequence[NoteField]:
        """The fields as they are shown: what only grows first, so that caches of prefixes know it again."""
        if self.mode is not CarryoverMode.HYBRID:
            return tuple(NoteField)
        return (NoteField.FINDINGS, *(name for name in NoteField if name is not NoteField.FINDINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """A new carryover, the notes that it gives, and the report on how it was made."""

    carryover: Carryover
    text: str
    report: CarryoverReport


def compress(
    before: Carryover,
    *,
    written: ParsedReply,
    summary: ParsedReply | None = None,
    failure: str = "",
    has_own_call: bool = False,
    counter: TokenCounter,
    limit: int,
) -> Compression:
    """Return what the next window is given after one that wrote `written`.

    `summary` is what a call of its own made of it; `failure` why there is none though one was due. Time is linear in
    the texts and in `limit`.
    """
    draft, reason = (
        (_draft_tail(before, written), "")
        if before.mode is CarryoverMode.TAIL
        else _draft(before, written, summary, failure, counter=counter, limit=limit)
    )
    fitted = _fit(draft, counter=counter, limit=limit)
    text = fitted.made.text
    report = CarryoverReport(
        before_tokens=counter.count_text(before.render(counter=counter, limit=limit))
        + counter.count_text(written.written),
        after_tokens=counter.count_text(text),
        dropped=_list_dropped(before, draft, fitted, counter),
        has_own_call=has_own_call,
        fallback_reason=reason,
    )
    return Compression(carryover=fitted.made, text=text, report=report)


def _draft_tail(before: Carryover, written: ParsedReply) -> Carryover:
    """Return the notes, or everything where none are marked: Delethink's raw tail."""
    notes = written.content.strip() if written.kind is TagKind.CONTINUE else ""
    return replace(before, tail=neutralize(notes or written.written), is_begun=True)


def _draft(
    before: Carryover,
    written: ParsedReply,
    summary: ParsedReply | None,
    failure: str,
    *,
    counter: TokenCounter,
    limit: int,
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
    is_replaced = not is_hybrid and NoteField.FINDINGS in new
    typed = read_typed_lines(f"{raw}\n{notes.rest}\n{told.rest}") if is_hybrid or reason else ()
    facts = _append_facts(
        () if is_replaced else before.facts, [*findings, *typed], counter=counter, most=_bound_fact(limit)
    )
    head = before.head
    if is_hybrid and not before.is_begun:
        head = counter.head(raw, _bound_head(limit))
        raw = raw[len(head) :]
    tail = "\n".join(filter(None, (raw.strip(), notes.rest, told.rest))) if is_hybrid or reason else ""
    fields = dict(before.fields) | {name: text for name, text in new.items() if name is not NoteField.FINDINGS}
    draft = replace(before, head=head, fields=fields, facts=facts, tail=tail, is_begun=True)
    return draft, reason


def _append_facts(facts: Sequence[str], new: Sequence[str], *, counter: TokenCounter, most: int) -> Sequence[str]:
    """Return `facts` and behind them those of `new` whose first `most` tokens are not among them, spelt alike."""
    known = {fact_key_of(fact): fact for fact in facts}
    for fact in new:
        whole = " ".join(fact.split())
        known.setdefault(fact_key_of(counter.head(whole, most)), whole)
    return tuple(known.values())


def _bound_fact(limit: int) -> int:
    """Return the most tokens of one fact: a quarter of what all facts share."""
    return limit * 3 // 32


def _bound_head(limit: int) -> int:
    return min(_MOST_HEAD_TOKENS, limit // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FittedCarryover:
    """Parts that fit together, and the facts that found no place among them."""

    made: Carryover
    overflow: str = ""


def _fit(draft: Carryover, *, counter: TokenCounter, limit: int) -> _FittedCarryover:
    """Return `draft` cut so that its text has at most `limit` tokens."""
    if draft.mode is CarryoverMode.TAIL:
        return _FittedCarryover(made=replace(draft, tail=counter.tail(draft.tail, limit)))
    # A summary that could not be had leaves a tail, which needs room beside the fields.
    has_tail = draft.mode is CarryoverMode.HYBRID or bool(draft.tail)
    fields_share = limit // 4 if has_tail else limit // 2
    facts_share = limit * 3 // 8 if has_tail else limit // 2
    facts, overflow = _take_oldest(draft.facts, facts_share, most=_bound_fact(limit), counter=counter)
    made = replace(
        draft,
        head=counter.head(draft.head, _bound_head(limit)),
        fields=_level_fields(draft.fields, fields_share, counter),
        facts=facts,
        tail="",
    )
    source = "\n".join(filter(None, (draft.tail, overflow))) if has_tail else ""
    taken = counter.count_text(made.text) + counter.count_text(f"\n{_TAIL_LABEL}\n") + _JOINT_TOKENS
    made = replace(made, tail=counter.tail(source, max(0, limit - taken)))
    return _FittedCarryover(made=_squeeze(made, counter=counter, limit=limit), overflow=overflow)


def _take_oldest(facts: Sequence[str], share: int, *, most: int, counter: TokenCounter) -> tuple[Sequence[str], str]:
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


def _level_fields(fields: Mapping[NoteField, str], share: int, counter: TokenCounter) -> Mapping[NoteField, str]:
    """Return the fields with the beginnings of the longest cut off level, so that all together fit."""
    sizes = {name: counter.count_text(text) for name, text in fields.items()}
    left, kept = share - sum(counter.count_text(f"\n{name}: ") for name in sizes), {}
    for done, name in enumerate(sorted(sizes, key=lambda one: (sizes[one], one))):
        room = max(0, left) // (len(sizes) - done)
        kept[name] = fields[name] if sizes[name] <= room else counter.head(fields[name], room)
        left -= min(sizes[name], room)
    return kept


def _squeeze(made: Carryover, *, counter: TokenCounter, limit: int) -> Carryover:
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


def _list_dropped(
    before: Carryover, draft: Carryover, fitted: _FittedCarryover, counter: TokenCounter
) -> Sequence[Dropped]:
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

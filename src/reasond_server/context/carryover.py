"""The carryover: the notes that one window of bounded context passes to the next, and how they are made.

It has at most m = carryover_size tokens, labels included, in up to four parts:

| part   | content                                                              | hybrid | summary | tail |
| head   | the beginning of the first window's reasoning, pinned, <= 256 tokens | m/8    | -       | -    |
| fields | strategy, progress, next steps, unresolved; the latest of each       | m/4    | m/2     | -    |
| facts  | key findings and typed lines, one a line                             | 3m/8   | m/2     | -    |
| tail   | the end of the window's output                                       | rest   | -       | m    |

In hybrid mode, facts are appended and never removed. A fact with the same spelling as an existing one is not added. A
fact that does not fit is carried only once, in the tail of the window that wrote it. The facts are before the other
fields, because a server that caches prefixes must read everything after the first change again. In summary mode, the
findings of each summary replace the previous findings. If a summary is missing, both modes carry facts and tail, and
the report has the reason.

Sources: seed 000 FR-5 and Feature 3 (the fields); Delethink, arXiv 2510.06557 (head and tail).

Fields are parsed leniently: models rename them, translate them, write them on several lines, or as JSON. A field begins
with a line `label: value`, with or without list, heading or emphasis marks around the label, and ends at the next
label. Text before the first label, or without labels, is kept unchanged, so that nothing is lost.
"""

from __future__ import annotations

import json
import re
import unicodedata
from contextlib import aclosing
from dataclasses import field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import ModelReply, stream_reply
from reasond_server.context.tags import TagKind, neutralize
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT, ModelError
from reasond_server.llm.model import ChatModel, Message, ModelFinish, Role, TokenCounter
from reasond_server.types import NOTHING, CarryoverMode, CarryoverReport, Dropped, Usage, UsageSource
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.context.replies import ParsedReply


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
# A tokenizer may count a few more tokens for two joined parts than for the two alone.
_JOINT_TOKENS = 8
_HEAD_LABEL = "Opening:"
_TAIL_LABEL = "Latest:"
_NO_FIELDS = "the notes had none of the five fields"
_COPIED = "the notes only repeated the example of the prompt"
PLAIN_EXAMPLE: Final = "The wall is 12 m long."
NOTES_EXAMPLE: Final = f"Key Findings:\n- {PLAIN_EXAMPLE}\nNext Steps: find its height."
"""What prompts show of notes; a model that copies it has noted nothing."""


class NoteField(StrEnum):
    """The five fields, in the order of the prompt; the values are the labels."""

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


@value
class Notes:
    """Parsed notes: `fields` has the fields that are not empty, `rest` the text outside all fields."""

    fields: Mapping[NoteField, str] = field(default_factory=dict)
    rest: str = ""

    @property
    def findings(self) -> Sequence[str]:
        """Each finding separately, without list marks."""
        return tuple(read_bare_lines(self.fields.get(NoteField.FINDINGS, "")))


def read_notes(text: str) -> Notes:
    """Return the fields of `text`; several values of one field are joined. Takes linear time."""
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


def drop_copied(text: str) -> str:
    """Return notes without lines that only repeat the example of the prompt; empty if only names of fields are left."""
    kept = [line for line in text.splitlines() if not _is_copied(line)]
    names = [_fold_label(part) for line in kept for part in line.replace(":", ",").split(",") if part.strip()]
    return "" if all(name in _FIELD_OF for name in names) else "\n".join(kept)


def _is_copied(line: str) -> bool:
    return compute_fact_key(_BULLET.sub("", line.strip(), count=1)) in _EXAMPLE_LINES


def read_typed_lines(text: str) -> Iterator[str]:
    """Yield the lines of `text` that begin with a type, such as `Result: 42`, with a uniform spelling of the type."""
    for line in text.splitlines()[:_MOST_LINES]:
        found = _TYPED.fullmatch(_BULLET.sub("", line.strip(), count=1).lstrip("*_`"))
        if found is not None:
            yield f"{found[1].capitalize()}: {found[2].strip()}"


def read_bare_lines(text: str) -> Iterator[str]:
    """Yield the lines of `text` that have letters or digits, without list marks."""
    for line in text.splitlines():
        bare = _BULLET.sub("", line.strip(), count=1).strip()
        if any(map(str.isalnum, bare)):
            yield bare


def compute_fact_key(fact: str) -> str:
    """Return a key that ignores white space, closing punctuation and the case of long words.

    Short words keep their case, and signs and digits are kept: `5 mW` is not `5 MW`, and `x = -3` is not `x = 3`.
    """
    joined = " ".join(unicodedata.normalize("NFC", fact).split()).rstrip(_CLOSING_MARKS)
    return _LONG_WORD.sub(lambda word: word[0].casefold(), joined)


_EXAMPLE_LINES: Final = frozenset(
    compute_fact_key(_BULLET.sub("", line, count=1)) for line in NOTES_EXAMPLE.splitlines()[1:]
)


def _fold_label(label: str) -> str:
    """Return a label in the spelling of the aliases."""
    words = re.sub(r"[_*`\s]+", " ", unicodedata.normalize("NFKC", label)).strip()
    return words.casefold() if words.isascii() else unicodedata.normalize("NFKC", words.lower())


def _read_json(text: str) -> Notes | None:
    """Return the fields of a JSON object; None if `text` is not a JSON object or has none of the fields."""
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
    """Return a JSON value as text; a list has one line per item."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in value)
    return "" if value is None else json.dumps(value, ensure_ascii=False)


@value
class Carryover:
    """The parts, neutralised. `is_begun` is true after the first window was compressed."""

    mode: CarryoverMode
    head: str = ""
    fields: Mapping[NoteField, str] = field(default_factory=dict)
    facts: Sequence[str] = ()
    tail: str = ""
    is_begun: bool = False

    def render(self, *, counter: TokenCounter, limit: int) -> str:
        """Return the notes as a window shows them, with at most `limit` tokens by `counter`."""
        whole = self.text
        return whole if counter.count_text(whole) <= limit else _fit(self, counter=counter, limit=limit).made.text

    @property
    def text(self) -> str:
        """The parts as one text with their labels, of any length."""
        parts = [f"{_HEAD_LABEL}\n{self.head}"] if self.head else []
        for name in self._order:
            if name is NoteField.FINDINGS and self.facts:
                parts.append("\n".join([f"{name}:", *(f"- {fact}" for fact in self.facts)]))
            elif self.fields.get(name):
                parts.append(f"{name}: {self.fields[name]}")
        if self.tail:
            parts.append(f"{_TAIL_LABEL}\n{self.tail}" if parts else self.tail)
        # Two harmless parts may together look like a tag.
        return neutralize("\n".join(parts))

    @property
    def _order(self) -> Sequence[NoteField]:
        """The order of the fields. In hybrid mode findings are first: they only grow, which suits prefix caches."""
        if self.mode is not CarryoverMode.HYBRID:
            return tuple(NoteField)
        return (NoteField.FINDINGS, *(name for name in NoteField if name is not NoteField.FINDINGS))


@value
class Compression:
    """A new carryover, its text, and the report on how it was made."""

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
    """Return the carryover for the next window after a window that wrote `written`.

    `summary` is the reply of a separate summary call; `failure` is why a summary that was due is missing. Time is
    linear in the texts and in `limit`.
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
    """Return the marked notes, or all text if none are marked: Delethink's raw tail."""
    noted = written.content.strip() if written.kind is TagKind.CONTINUE else ""
    rest = written.text if noted else written.written
    return replace(before, tail=neutralize(drop_copied(noted) or rest), is_begun=True)


def _draft(
    before: Carryover,
    written: ParsedReply,
    summary: ParsedReply | None,
    failure: str,
    *,
    counter: TokenCounter,
    limit: int,
) -> tuple[Carryover, str]:
    """Return the parts before they are cut to size, and the reason for a fallback from the mode, empty for none."""
    is_hybrid = before.mode is CarryoverMode.HYBRID
    noted = written.content.strip() if written.kind is TagKind.CONTINUE else ""
    marked = drop_copied(noted)
    raw = neutralize(written.text.strip() if noted else written.written)
    notes = read_notes(neutralize(marked))
    summed = read_notes(neutralize(drop_copied(summary.content.strip() or summary.written)) if summary else "")
    new = {**notes.fields, **summed.fields}
    findings = [*notes.findings, *summed.findings]
    reason = failure or ("" if is_hybrid or new else _NO_FIELDS)
    if noted and not (marked or summed.fields):
        reason = _COPIED
    is_replaced = not is_hybrid and NoteField.FINDINGS in new
    typed = read_typed_lines(f"{raw}\n{notes.rest}\n{summed.rest}") if is_hybrid or reason else ()
    facts = _append_facts(
        () if is_replaced else before.facts, [*findings, *typed], counter=counter, most=_bound_fact(limit)
    )
    head = before.head
    if is_hybrid and not before.is_begun:
        head = counter.head(raw, _bound_head(limit))
        raw = raw[len(head) :]
    tail = "\n".join(filter(None, (raw.strip(), notes.rest, summed.rest))) if is_hybrid or reason else ""
    fields = dict(before.fields) | {name: text for name, text in new.items() if name is not NoteField.FINDINGS}
    draft = replace(before, head=head, fields=fields, facts=facts, tail=tail, is_begun=True)
    return draft, reason


def _append_facts(facts: Sequence[str], new: Sequence[str], *, counter: TokenCounter, most: int) -> Sequence[str]:
    """Return `facts` and the facts of `new` that are not among them, by the key of their first `most` tokens."""
    known = {compute_fact_key(fact): fact for fact in facts}
    for fact in new:
        whole = " ".join(fact.split())
        known.setdefault(compute_fact_key(counter.head(whole, most)), whole)
    return tuple(known.values())


def _bound_fact(limit: int) -> int:
    """Return the most tokens of one fact: a quarter of the share of all facts."""
    return limit * 3 // 32


def _bound_head(limit: int) -> int:
    return min(_MOST_HEAD_TOKENS, limit // 8)


@value
class _FittedCarryover:
    """Parts that fit the limit together, and the facts that did not fit."""

    made: Carryover
    overflow: str = ""


def _fit(draft: Carryover, *, counter: TokenCounter, limit: int) -> _FittedCarryover:
    """Return `draft`, cut so that its text has at most `limit` tokens."""
    if draft.mode is CarryoverMode.TAIL:
        return _FittedCarryover(made=replace(draft, tail=counter.tail(draft.tail, limit)))
    # Without a summary, summary mode also has a tail, which needs room.
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
    """Return as many of the first facts as fit, and the rest as lines; each is cut to `most` unless all fit whole."""
    if sum(counter.count_text(f"- {fact}\n") for fact in facts) <= share:
        return tuple(facts), ""
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
    """Return the fields, the longest ones cut to an equal size, so that all fit `share` tokens together."""
    sizes = {name: counter.count_text(text) for name, text in fields.items()}
    left, kept = share - sum(counter.count_text(f"\n{name}: ") for name in sizes), {}
    for done, name in enumerate(sorted(sizes, key=lambda one: (sizes[one], one))):
        room = max(0, left) // (len(sizes) - done)
        kept[name] = fields[name] if sizes[name] <= room else counter.head(fields[name], room)
        left -= min(sizes[name], room)
    return kept


def _squeeze(made: Carryover, *, counter: TokenCounter, limit: int) -> Carryover:
    """Return `made` with parts removed, the tail first, until its text fits."""
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
    """Return the tokens missing in the new carryover: of the window, of facts and fields, and of the previous tail."""
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


SUMMARY_REQUEST = (
    "The window is full. Write the notes for the next one now, briefly, between <continue> and </continue>."
)
FEWEST_SUMMARY_TOKENS = 32
"""No summary is requested if it has less room than this, in tokens."""


@value
class Summary:
    """The result of the call: `notes`, or None and the reason. `usage` is None if no call was made or charged.

    `cut_usage` is as in `ModelReply`.
    """

    notes: ParsedReply | None = None
    failure: str = ""
    usage: Usage | None = None
    cut_usage: Usage = NOTHING
    is_exact: bool = True


def bound_summary(*, chunk_size: int, carryover_size: int) -> int:
    """Return the most tokens a summary may have: 0.15 (C - m), which keeps its share of the latency small."""
    return 3 * (chunk_size - carryover_size) // 20


def build_summary_prompt(messages: Sequence[Message], written: ParsedReply) -> Sequence[Message]:
    """Return the `messages` of the window, the model's reply, and the request."""
    tag = f"<{written.kind.value}>" if written.kind is not None else ""
    said = f"{written.text}{tag}{written.content}"
    reply = Message(
        role=Role.ASSISTANT,
        content=neutralize(said if said.strip() else written.thinking),
        reasoning=neutralize(written.thinking) if said.strip() else "",
    )
    return (*messages, reply, Message(role=Role.USER, content=SUMMARY_REQUEST))


async def summarize(
    *,
    model: ChatModel,
    messages: Sequence[Message],
    written: ParsedReply,
    chunk_size: int,
    most_tokens: int,
    temperature: float,
) -> Summary:
    """Request the summary. An error of the model is not raised but returned as `Summary.failure`.

    Cancellations and defects of this program are raised.
    """
    if not written.written:
        return Summary(failure="the window left nothing to summarize")
    if most_tokens < FEWEST_SUMMARY_TOKENS:
        return Summary(failure="chunk_size leaves no room for a summary")
    prompt = build_summary_prompt(messages, written)
    heard: list[str] = []
    counted, is_exact = model.counter.count_prompt(prompt), model.counter.is_exact
    try:
        exact = await model.count_exactly(prompt)
        counted, is_exact = (counted, is_exact) if exact is None else (exact, True)
        room = min(most_tokens, chunk_size - counted)
        if room < FEWEST_SUMMARY_TOKENS:
            return Summary(failure="the window left no room for a summary")
        call = stream_reply(
            model=model, messages=prompt, max_tokens=room, temperature=temperature, kinds=(TagKind.CONTINUE,)
        )
        async with aclosing(call) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    heard.append(piece.text)
    except (ModelError, TokenBudgetExhaustedError) as error:
        is_charged = not isinstance(error, (*UNSPENT, TokenBudgetExhaustedError)) or bool(heard)
        usage = Usage(
            input_tokens=counted,
            output_tokens=model.counter.count_text("".join(heard)),
            model_calls=1,
            source=UsageSource.ESTIMATED,
        )
        failure = f"the summary call failed ({error.reason})"
        return Summary(failure=failure, usage=usage if is_charged else None, is_exact=is_exact)
    failure = _find_flaw(reply)
    return Summary(
        notes=None if failure else reply.parsed,
        failure=failure,
        usage=reply.usage,
        cut_usage=reply.cut_usage,
        is_exact=is_exact,
    )


def _find_flaw(reply: ModelReply) -> str:
    """Return why a reply is not a summary; empty if it is one."""
    parsed = reply.parsed
    if reply.finish is ModelFinish.CONTENT_FILTER:
        return "the summary was withheld by a content filter"
    if not (parsed.content.strip() or parsed.text.strip()):
        return "the summary was empty"
    if parsed.kind is None and not read_notes(parsed.text).fields:
        return "the summary had no notes in it"
    return ""

"""The fields of a carryover as models write them, read leniently: renamed, translated, over many lines, or as JSON.

The five fields are those of seed 000, Feature 3. A field begins at a line `label: value`, with or without marks of
lists, headings and emphasis around the label, and goes on to the next label. What stands before the first label, and
a text without any, is kept as it is: nothing that a model wrote is lost in parsing.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Field(StrEnum):
    """The five fields, in the order in which a model is asked for them; the values are the labels."""

    STRATEGY = "Current Strategy"
    FINDINGS = "Key Findings"
    PROGRESS = "Progress"
    NEXT_STEPS = "Next Steps"
    UNRESOLVED = "Unresolved"


_ALIASES: Final = MappingProxyType({
    Field.STRATEGY: (
        "current strategy", "strategy", "approach", "current approach", "plan", "method",
        "strategie", "aktuelle strategie", "vorgehen", "stratégie", "stratégie actuelle", "estrategia",
        "estrategia actual", "estratégia", "estratégia atual", "strategia", "стратегия", "текущая стратегия",
        "当前策略", "策略", "現在の戦略", "戦略",
    ),
    Field.FINDINGS: (
        "key findings", "findings", "key finding", "finding", "key facts", "facts", "key insights", "insights",
        "erkenntnisse", "wichtige erkenntnisse", "befunde", "découvertes", "principales découvertes",
        "hallazgos", "hallazgos clave", "descobertas", "principais descobertas", "risultati", "ключевые выводы",
        "выводы", "关键发现", "发现", "主な発見", "発見",
    ),
    Field.PROGRESS: (
        "progress", "progress so far", "status", "state", "current state", "done",
        "fortschritt", "stand", "progrès", "avancement", "progreso", "progresso", "прогресс", "进展", "进度", "進捗",
    ),
    Field.NEXT_STEPS: (
        "next steps", "next step", "next", "todo", "to do", "remaining steps",
        "nächste schritte", "prochaines étapes", "próximos pasos", "próximos passos", "prossimi passi",
        "следующие шаги", "下一步", "后续步骤", "次のステップ",
    ),
    Field.UNRESOLVED: (
        "unresolved", "unresolved questions", "open questions", "open question", "open issues", "challenges",
        "questions", "offene fragen", "ungelöst", "offen", "non résolu", "questions ouvertes", "sin resolver",
        "preguntas abiertas", "não resolvido", "questões em aberto", "irrisolto", "нерешённое", "нерешенное",
        "未解决", "未解决问题", "未解決",
    ),
})  # fmt: skip
_FIELD_OF: Final = MappingProxyType(
    {unicodedata.normalize("NFKC", alias): one for one, aliases in _ALIASES.items() for alias in aliases}
)
_LABEL = re.compile(r"[ \t>#*_`\-\u2022\d.)\"'\[{]{0,16}([^\W\d_][^:\uFF1A=\n]{0,40}?)[ \t*_`\"'\]]{0,8}[:\uFF1A](.*)")
_TYPED = re.compile(
    r"(fact|result|value|definition|constraint|decision)[ \t*_`]{0,4}[:\uFF1A][ \t*_`]{0,4}(\S.*)", re.IGNORECASE
)
_BULLET = re.compile(r"(?:[-*\u2022\u2013+>]|\d{1,3}[.)])[ \t]+")
_EMPHASIS = "*_ \t"
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_CLOSING_MARKS = " \t.;,!\u3002"
_MOST_LINES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What was read: `fields` holds only those that say something, `rest` what belongs to none."""

    fields: Mapping[Field, str] = field(default_factory=dict)
    rest: str = ""

    @property
    def findings(self) -> Sequence[str]:
        """Each finding by itself, without the mark of a list."""
        return tuple(bare_lines(self.fields.get(Field.FINDINGS, "")))


def read_notes(text: str) -> Notes:
    """Return the fields of `text`; a field that comes twice is joined. Time is linear in `text`."""
    from_json = _read_json(text)
    if from_json is not None:
        return from_json
    rest: list[str] = []
    found: dict[Field, list[str]] = {}
    current = rest
    for line in text.splitlines()[:_MOST_LINES]:
        label = _LABEL.fullmatch(line)
        named = _FIELD_OF.get(_folded(label[1])) if label is not None else None
        if label is None or named is None:
            current.append(line)
            continue
        current = found.setdefault(named, [])
        current.append(label[2].lstrip(_EMPHASIS))
    fields = {name: "\n".join(lines).strip() for name, lines in found.items()}
    return Notes(fields={name: value for name, value in fields.items() if value}, rest="\n".join(rest).strip())


def typed_lines(text: str) -> Iterator[str]:
    """Yield the lines of `text` that say of what type they are, such as `Result: 42`, in one spelling."""
    for line in text.splitlines()[:_MOST_LINES]:
        found = _TYPED.fullmatch(_BULLET.sub("", line.strip(), count=1).lstrip("*_`"))
        if found is not None:
            yield f"{found[1].capitalize()}: {found[2].strip()}"


def bare_lines(text: str) -> Iterator[str]:
    """Yield the lines of `text` that say something, without the marks of lists."""
    for line in text.splitlines():
        bare = _BULLET.sub("", line.strip(), count=1).strip()
        if any(map(str.isalnum, bare)):
            yield bare


def fact_key(fact: str) -> str:
    """Return what two spellings of one fact have in common: blanks, closing marks and the case of long words differ.

    Short words keep their case, signs and digits stay: `5 mW` is not `5 MW`, and `x = -3` not `x = 3`.
    """
    joined = " ".join(unicodedata.normalize("NFC", fact).split()).rstrip(_CLOSING_MARKS)
    return _LONG_WORD.sub(lambda word: word[0].casefold(), joined)


def _folded(label: str) -> str:
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
    found: dict[Field, str] = {}
    for label, content in value.items():
        name = _FIELD_OF.get(_folded(label))
        if name is not None and (said := _said(content)):
            found[name] = said
    return Notes(fields=found) if found else None


def _said(value: object) -> str:
    """Return a JSON value as text, a list with a line for each of its values."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in value)
    return "" if value is None else json.dumps(value, ensure_ascii=False)

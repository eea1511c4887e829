"""Requests that name tools: the demo model calls each tool that a sentence names, and quotes what the tools returned.

A sentence names a tool if it has every word of the tool's name: "Tell the current time." names `current_time`. Texts in
double quotes or backticks are the arguments, in the order of the tool's parameters, the required ones first. A sentence
that is a computation is given to the calculator. Calls are made one after the other, in the order of the sentences.
"""

from __future__ import annotations

import json
import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from reasond_server.demo.acting import (
    CALCULATOR,
    Act,
    find_messages_since_question,
    name_calls,
    read_number,
    write_expressions,
)
from reasond_server.demo.computation import compute
from reasond_server.demo.extraction import split_sentences
from reasond_server.demo.numerals import has_value
from reasond_server.llm.model import Role
from reasond_server.types import ToolCall
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.demo.computation import Worked
    from reasond_server.demo.prompt import Prompt
    from reasond_server.llm.model import ChatRequest, ToolSpec

_UNNAMED: Final = frozenset({CALCULATOR, "read_tool_result"})
_QUOTED: Final = re.compile(r'"([^"]*)"|`([^`]*)`|“([^”]*)”')
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_FENCE: Final = re.compile(r"<observation[^>]*>\n?(.*?)\n?</observation[^>]*>", re.DOTALL)
_MOST_CALLS: Final = 12
_MOST_QUOTED_CHARACTERS: Final = 600


@value
class _Sentence:
    """A sentence of the request with the calls that it needs; `worked` if it is a computation."""

    text: str
    calls: Sequence[tuple[str, str]] = ()
    worked: Worked | None = None


def choose_named_act(request: ChatRequest, prompt: Prompt) -> Act | None:
    """Return the next call of a request that names tools, or its answer; None if it names none of the offered ones."""
    if not request.tools:
        return None
    sentences = _read_sentences(prompt.question, {tool.name: tool for tool in request.tools})
    planned = [call for sentence in sentences for call in sentence.calls][:_MOST_CALLS]
    if all(name == CALCULATOR for name, _ in planned):
        return None
    results = _read_results(request, planned)
    done = len(results)
    if request.tool_choice != "none" and done < len(planned):
        name, arguments_json = planned[done]
        text = f"Step {done + 1} of {len(planned)}: I call {name}."
        return Act(text=text, call=ToolCall(call_id=f"demo{done + 1}", name=name, arguments_json=arguments_json))
    return Act(text=f"<answer>{chr(10).join(_write_lines(sentences, results))}</answer>")


def _read_sentences(question: str, tools: Mapping[str, ToolSpec]) -> list[_Sentence]:
    """Split `question` into sentences, with what is quoted kept whole, and find what each asks for."""
    quotes: list[str] = []

    def mask(match: re.Match[str]) -> str:
        quotes.append(match[0])
        # A sentence may end within its quotation marks.
        end = match[0][-2] if match[0][-2] in ".!?" else ""
        return f'"{len(quotes) - 1}{end}"'

    def restore(match: re.Match[str]) -> str:
        return quotes[int(match[1])]

    return [
        _read_sentence(re.sub(r'"(\d+)[.!?]?"', restore, masked), _QUOTED.sub(" ", masked), tools)
        for masked in split_sentences(_QUOTED.sub(mask, question))
    ]


def _read_sentence(text: str, plain: str, tools: Mapping[str, ToolSpec]) -> _Sentence:
    """Return what `text` asks for; `plain` is the same without what it quotes."""
    words = {word.lower() for word in _WORD.findall(plain)}
    named = [name for name in tools if name not in _UNNAMED and _words_of(name) <= words]
    if named:
        tool = tools[max(named, key=lambda name: (len(_words_of(name)), name))]
        values = [next(group for group in match.groups() if group is not None) for match in _QUOTED.finditer(text)]
        arguments = _fill(tool.parameters, values, words)
        calls = () if arguments is None else ((tool.name, json.dumps(arguments, ensure_ascii=False)),)
        return _Sentence(text=text, calls=calls)
    worked = compute(text)
    if worked is None or CALCULATOR not in tools:
        return _Sentence(text=text, worked=worked)
    expressions = write_expressions(worked)
    return _Sentence(
        text=text, worked=worked, calls=[(CALCULATOR, json.dumps({"expression": one})) for one in expressions]
    )


def _words_of(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)} or {name}


def _fill(schema: Mapping[str, Any], values: Sequence[str], words: set[str]) -> dict[str, Any] | None:
    """Return arguments from the quoted `values`; None if a required one is missing or has an unfit type."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = [name for name in properties if name in (schema.get("required") or ())]
    given = iter(values)
    filled: dict[str, Any] = {}
    for name in (*required, *[name for name in properties if name not in required]):
        member = properties[name]
        chosen = [one for one in member.get("enum", ()) if str(one).lower() in words]
        value = chosen[0] if chosen else next(given, None)
        if value is not None and not chosen:
            value = _convert(value, member.get("type"))
        if value is None:
            if name in required:
                return None
            continue
        filled[name] = value
    return filled


def _convert(text: str, kind: object) -> object:
    """Return `text` as a value of the JSON type `kind`; None if it is none."""
    if kind in {"string", None}:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return None


def _read_results(request: ChatRequest, planned: Sequence[tuple[str, str]]) -> list[str]:
    """Return the results of the planned calls that were made, in order, each as the JSON or text that is shown."""
    messages = find_messages_since_question(request.messages)
    names = name_calls(messages)
    made = [(names.get(one.tool_call_id), one.content) for one in messages if one.role is Role.TOOL]
    agreed = takewhile(lambda pair: pair[0][0] == pair[1][0], zip(made, planned, strict=False))
    return [content for (_, content), _ in agreed]


def _write_lines(sentences: Sequence[_Sentence], results: Sequence[str]) -> Iterator[str]:
    """Yield one line for each sentence of the request."""
    left = iter(results)
    for sentence in sentences:
        own = [next(left, None) for _ in sentence.calls]
        name = sentence.calls[0][0] if sentence.calls else ""
        if sentence.worked is not None:
            yield _write_computation(sentence.worked, own)
        elif not own:
            yield f"This needs a language model: {sentence.text}"
        elif own[0] is None:
            yield f"{name} was not called."
        else:
            yield _write_quote(name, _strip_fence(own[0]))


def _write_computation(worked: Worked, results: Sequence[str | None]) -> str:
    values = [read_number(one or "") for one in results]
    if not values or None in values:
        return f"Without the calculator: {worked.answer}"
    last = values[-1] or 0.0
    return f"The calculator says {worked.answer if has_value(worked.answer, last) else f'{last:.10g}'}."


def _write_quote(name: str, shown: str) -> str:
    """Return what a tool returned, as it stands in the prompt."""
    try:
        value = json.loads(shown)
    except ValueError:
        value = shown
    if isinstance(value, dict) and "error" in value:
        return f"{name} gave no result: {_cut(str(value.get('message') or value['error']))}"
    return f"{name} says: {_cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))}"


def _strip_fence(content: str) -> str:
    found = _FENCE.search(content)
    return found[1] if found else content


def _cut(text: str) -> str:
    if len(text) <= _MOST_QUOTED_CHARACTERS:
        return text
    return f"{text[:_MOST_QUOTED_CHARACTERS]} … ({len(text):,} characters)"

"""Tools and their calls beside the text: tools as clients declare them, and calls in the members of messages.

Declarations are written as providers accept them; calls are read as gateways really send them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from reasond_server.dialects.json_repairs import read_object
from reasond_server.types import ToolCall

# vllm-project/vllm#32587; the names that harmony, Gemini and Kimi put before and behind that of the tool.
_PREFIX: Final = re.compile(r"(?:(?:functions|function|tools|default_api)[.:])+")
# vllm-project/vllm-ascend#12398
_TAG: Final = re.compile(r"</?[\w:-]{1,20}>")
_SUFFIX: Final = re.compile(r"(?:<[|\uff5c]|\s*\(|:\d+$|\s).*", re.DOTALL)
_OWN_MEMBERS: Final = frozenset({"index", "id", "type", "function", "name", "arguments", "parameters", "input", "args"})
# How Gemma 4 writes quotes (vllm-project/vllm#44522).
_QUOTE: Final = '<|"|>'
_ARGUMENTS: Final = ("arguments", "parameters", "input", "args")
_NO_ARGUMENTS: Final = frozenset({"", "null", "none", '""'})
_SCHEMAS_BY_NAME: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_MAY_BE_NULL: Final = frozenset({"const", "default"})


def clean_name(name: str) -> str:
    """Return the name of a tool without what a template or a gateway puts around it."""
    name = _TAG.sub("", name).strip() or name
    return _SUFFIX.sub("", _PREFIX.sub("", name)) or name


def clean_arguments(arguments: object) -> str:
    """Return arguments as the text of a JSON object if they can be read as one, else as they are.

    They may be an object (ggml-org/llama.cpp#20198), missing, encoded twice, or have a trailing comma.
    """
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    if arguments is None or (isinstance(arguments, str) and arguments.strip().lower() in _NO_ARGUMENTS):
        return "{}"
    if not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    return arguments if _is_object(arguments) else _write(read_object(arguments.replace(_QUOTE, '"')), arguments)


def close_arguments(arguments: str) -> str:
    """Return arguments with the closing brackets that they lack, if they are an object then."""
    if _is_object(arguments):
        return arguments
    found = (read_object(arguments.rstrip() + missing) for missing in ("}", "]}", "}}"))
    return _write(next((each for each in found if each is not None), None), arguments)


def unwrap_arguments(call: ToolCall, schema: Mapping[str, Any] | None) -> ToolCall:
    """Return a call whose arguments are wrapped as `{"arguments": {...}}` without that; a tool may have such an one."""
    given = read_object(call.arguments_json) if call.arguments_json[:1] == "{" else None
    name = next(iter(given), "") if given and len(given) == 1 else ""
    properties = (schema or {}).get("properties")
    if given is None or name not in _ARGUMENTS or not isinstance(properties, dict) or name in properties:
        return call
    inner = given[name] if isinstance(given[name], dict) else None
    return call if inner is None else replace(call, arguments_json=json.dumps(inner, ensure_ascii=False))


def _write(found: dict[str, Any] | None, written: str) -> str:
    return written if found is None else json.dumps(found, ensure_ascii=False)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(slots=True)
class _OpenCall:
    """A call whose arguments may go on; `whole` are arguments that came as an object."""

    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    whole: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def join(self) -> str:
        """Return the arguments; a last piece that repeats all of them replaces the pieces before it."""
        if self.whole is not None:
            return clean_arguments(self.whole)
        joined = clean_arguments("".join(self.pieces))
        if len(self.pieces) > 1 and not _is_object(joined) and _is_object(clean_arguments(self.pieces[-1])):
            return clean_arguments(self.pieces[-1])
        return joined

    def has_whole_arguments(self) -> bool:
        """Return whether nothing can follow the arguments that came."""
        return self.whole is not None or _is_object("".join(self.pieces))


class NativeCalls:
    """Joins the pieces of the calls of one answer.

    `characters`: how much of names and arguments came; it never decreases.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[_OpenCall]] = {}
        self._given: list[ToolCall] = []
        self.characters = 0

    @property
    def has_called(self) -> bool:
        """Whether a call was taken."""
        return bool(self._given)

    @property
    def is_empty(self) -> bool:
        """Whether no call waits to be taken."""
        return not self._open

    def add(self, call: object, position: int) -> None:
        """Take a piece of the call at `position` of its list; servers that send whole calls may omit the index."""
        if not isinstance(call, dict):
            return
        function = call.get("function")
        inner = function if isinstance(function, dict) else call
        name, call_id = inner.get("name"), call.get("id")
        arguments = next((inner[each] for each in _ARGUMENTS if inner.get(each) is not None), None)
        index = call.get("index")
        opened = self._choose(index if isinstance(index, int) else position, call_id, name, arguments)
        if isinstance(call_id, str) and call_id:
            opened.call_id = call_id
        if isinstance(name, str) and name:
            self.characters += len(name)
            opened.name = _join_name(opened, name)
        if isinstance(arguments, str):
            opened.pieces.append(arguments)
            self.characters += len(arguments)
        elif isinstance(arguments, dict):
            opened.whole = (opened.whole or {}) | arguments
            self.characters += len(arguments)
        _keep_extra(opened.extra, call, inner)

    def _choose(self, at: int, call_id: object, name: object, arguments: object) -> _OpenCall:
        """Return the call that a piece belongs to.

        Some gateways send all calls under one index, with ids or without (huggingface/smolagents#1958), and some repeat
        the name with each piece: there a new call begins where the arguments of the last one are whole.
        """
        several = self._open.setdefault(at, [])
        last = several[-1] if several else None
        if last is not None and not (name and last.name):
            return last
        if last is not None:
            is_other_id = isinstance(call_id, str) and bool(call_id) and call_id != last.call_id
            begins = isinstance(arguments, dict) or (
                isinstance(arguments, str) and arguments.lstrip()[:1] in {"{", '"'}
            )
            if not ((is_other_id and last.call_id) or (begins and last.has_whole_arguments())):
                return last
        several.append(_OpenCall())
        return several[-1]

    @property
    def are_whole(self) -> bool:
        """Whether there are calls, and nothing can follow the arguments of any."""
        opened = [call for several in self._open.values() for call in several]
        return bool(opened) and all(call.name and call.has_whole_arguments() for call in opened)

    def take(self, *, may_be_cut: bool) -> Iterator[ToolCall]:
        """Yield the calls that came, each once; if the answer was cut, only those with whole arguments."""
        opened, self._open = self._open, {}
        for call in (call for _, several in sorted(opened.items()) for call in several):
            arguments = call.join()
            if not call.name or (may_be_cut and not _is_object(arguments)):
                continue
            arguments = close_arguments(arguments)
            extra = json.dumps(call.extra, ensure_ascii=False) if call.extra else ""
            made = ToolCall(
                call_id=call.call_id or f"call_{len(self._given)}",
                name=clean_name(call.name),
                arguments_json=arguments,
                extra_json=extra,
            )
            if made not in self._given:
                self._given.append(made)
                yield made


def _join_name(opened: _OpenCall, name: str) -> str:
    """Return the name of a call after another piece of it, which may be the rest, all so far, or a repetition."""
    if opened.pieces or opened.name.endswith(name):
        return opened.name
    return name if name.startswith(opened.name) else opened.name + name


def _keep_extra(kept: dict[str, Any], call: dict[str, Any], inner: dict[str, Any]) -> None:
    """Keep the members that a gateway wants back with a call (tinyhumansai/openhuman#3548)."""
    kept |= {name: value for name, value in call.items() if name not in _OWN_MEMBERS and value is not None}
    own = {name: value for name, value in inner.items() if name not in _OWN_MEMBERS and value is not None}
    if inner is not call and own:
        kept["function"] = kept.get("function", {}) | own


def read_failed_call(error: object) -> dict[str, Any] | None:
    """Return the choice that a report of a call means that the gateway could not read; None for any other report.

    Groq shows what the model wrote: groq/groq-typescript#28, tashfeenahmed/freellmapi#291.
    """
    if not isinstance(error, dict) or error.get("code") != "tool_use_failed":
        return None
    written = error.get("failed_generation")
    return {
        "index": 0,
        "delta": {"content": written if isinstance(written, str) else ""},
        "finish_reason": "stop" if written else "tool_calls",
    }


def write_call(call: ToolCall) -> dict[str, Any]:
    """Return a call for the history of Chat Completions, with the members that its gateway sent beside the standard."""
    extra = read_object(call.extra_json) or {} if call.extra_json else {}
    function = {"name": call.name, "arguments": call.arguments_json} | extra.pop("function", {})
    return {"id": call.call_id, "type": "function", "function": function} | extra


def drop_nulls(schema: Any, *, is_by_name: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """Return a JSON Schema without keywords that are null, as some clients write those that are not set.

    coder/coder#23538, MervinPraison/PraisonAI#3111. With `is_by_name`, `schema` is an object of schemas by name, of
    which one that is null accepts everything. `schema` may be nested at most as deep as JSON that was parsed.
    """
    if isinstance(schema, list):
        return [drop_nulls(each) if isinstance(each, dict) else each for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for name, value in schema.items():
        if is_by_name:
            kept[name] = {} if value is None else drop_nulls(value)
        elif name in _MAY_BE_NULL:
            kept[name] = value
        elif value is not None:
            kept[name] = drop_nulls(value, is_by_name=name in _SCHEMAS_BY_NAME)
    return kept


MOST_CHARACTERS: Final = 64
"""What OpenAI's interface accepts, and what some servers hold clients to."""
_DIGEST: Final = 8


def shorten_name(name: str, *, key: str = "") -> str:
    """Return the beginning of `name` with a digest of `key`, or of the whole name, which keeps two names different."""
    digest = hashlib.sha256((key or name).encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{name[: MOST_CHARACTERS - _DIGEST - 1]}_{digest}"

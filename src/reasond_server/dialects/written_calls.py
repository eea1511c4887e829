"""Tool calls that a model writes into its text, in the forms of the templates that they were trained with."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from typing import Any, Final

from reasond_server.dialects.json_repairs import read_object, scan_value
from reasond_server.dialects.native_calls import clean_name
from reasond_server.types import Json, ToolCall
from reasond_server.types.values import value

# Hermes and Qwen (vllm-project/vllm#22975), Qwen3-Coder and Llama (mudler/LocalAI#10346), GLM, Granite, Phi-4, Mistral,
# DeepSeek with its DSML, Kimi K2, harmony (waybarrios/vllm-mlx#107), Anthropic and MiniMax, Gemma, Cohere, LFM2,
# Nemotron, Seed-OSS, InternLM, LM Studio (lmstudio-ai/lmstudio-bug-tracker#630), Phi-4-mini, Llama 4, functionary,
# Qwen-Agent, and the form of our own prompts.
_MARK: Final = re.compile(
    r"<\|?(?:[a-z]{1,16}[:_])?tool_?calls?(?:_start|_section_begin|_begin)?\|?>|<TOOLCALL>|<\|?tools_prefix\|>"
    r"|<(?:antml:)?function_?calls?>|<start_function_call>|<function(?:=|\s+name=)|<(?:antml:)?invoke\s+name="
    r"|<xai:function_call\s+name=\"|<\|function_call\|>|<\|plugin\|>|<\|message_sep\|>\s*function call"
    r"|\[TOOL_CALLS\]|<\|python_tag\|>|<\|START_ACTION\|>|<\|action_start\|>"
    r"|<[|\uff5c](?:tool[\u2581_ ]calls?[\u2581_ ]begin|DSML)[|\uff5c]"
    r"|(?:<\|start\|>assistant\s*)?(?:<\|channel\|>\s*(?:commentary|analysis)\s*|(?<=assistant )|^commentary\s*)?"
    r"to=(?:functions\.|[\w.]{1,128}[^\n<]{0,20}<\|(?:message|constrain)\|>)"
    r"|<tool_code>|<\|open\|>tools<\|sep\|>|\[Calling tool:|\[tool_call:"
    r"|<execute_tool>|<tool[_-](?:request|use)>|\[TOOL_REQUEST\]|\bfunctools(?=\[)|<\|python_start\|>|<\|recipient\|>"
    r"|\u273fFUNCTION\u273f"
    r"|<action>(?=\s*(?:```\w*\s*)?(?:[{\[]|[a-z_]\w{0,63}\(|</action>))|<tools>(?=\s*(?:[{\[]|</tools>))",
    re.IGNORECASE | re.MULTILINE,
)
# A text that may become a call: nothing from there on is shown until the reply is whole.
_MAY_BEGIN: Final = re.compile(
    r"</?(?:[a-z]{1,16}:)?(?:tool|function|antml|invoke|start_function|action|execute)|<[|\uff5c]|\[TOOL_|\bfunctools\[|\u273f|\bto=functions"
    r"|^<[a-z_][\w.-]{0,64}>\s*(?:$|\{)|^<[a-z_][\w.-]{0,64}\s\w{1,64}=|<use_tool\b|^@?[a-z_][\w.]{0,64}(?:\[A|\s?\{)"
    r"|\[Calling\b|^\[?[a-z_][\w.]{0,64}\("
    r"|\A\s*(?:```\w*\s*)?[{\[]|^(?:```|~~~)(?:json|tool)|^\{{1,2}\s*\"|^Action:"
    r"|<[a-z_:]{0,16}\Z|\[[A-Z_]{0,11}\Z|\bto(?:=\w{0,9})?\Z|^(?:`{1,3}|~{1,3})[a-z]{0,4}\Z|^A[a-z]{0,5}\Z|^\{\Z",
    re.IGNORECASE | re.MULTILINE,
)
_NAMED: Final = re.compile(
    r"<(?:function|(?:[^<>\s]{0,12}[:\uff5c])?(?:invoke|function_call))(?:=|\s+name=)[\"']?(?P<name>[\w.:-]{1,128})[\"']?"
    r"\s*(?:>|(?=\{))(?P<body>.*?)"
    r"(?P<end></?(?:function|(?:[^<>\s]{0,12}[:\uff5c])?(?:invoke|function_call))>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_PARAMETER: Final = re.compile(
    r"<(?:[^<>\s]{0,12}[:\uff5c])?parameter(?:=|\s+name=)[\"']?(?P<name>[^\"'<>\s]{1,128})[\"']?[^<>]{0,40}>"
    r"(?P<value>.*?)(?:</(?:[^<>\s]{0,12}[:\uff5c])?parameter>|(?=<(?:[^<>\s]{0,12}[:\uff5c])?parameter))",
    re.DOTALL | re.IGNORECASE,
)
# Kimi K3 (vllm-project/vllm#51399), in the words of the form above: a pattern, and what takes its place.
_KIMI: Final = (
    (re.compile(r"<\|open\|>call tool=\"([\w.:-]{1,128})\"[^<]{0,40}<\|sep\|>"), r"<function=\1>"),
    (re.compile(r"<\|open\|>argument key=\"([^\"<]{1,128})\"[^<]{0,40}<\|sep\|>"), r"<parameter=\1>"),
    (re.compile(r"<\|close\|>call<\|sep\|>"), "</function>"),
    (re.compile(r"<\|close\|>argument<\|sep\|>"), "</parameter>"),
    (re.compile(r"<\|(?:open|close)\|>json[^<]{0,40}<\|sep\|>"), ""),
)
_PARAMETER_BEGINS: Final = re.compile(r"<(?:[^<>\s/]{0,12}[:\uff5c])?parameter(?:=|\s)", re.IGNORECASE)
_GLM: Final = re.compile(r"<tool_call>\s*([\w.-]{1,128})\s*(<arg_key>.*?)(?:</tool_call>|\Z)", re.DOTALL)
_GLM_PAIR: Final = re.compile(
    r"<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|(?=<arg_key>))", re.DOTALL
)
_LAST_WORD: Final = re.compile(r"([A-Za-z_][\w.-]{0,127})(?::\d{1,4})?\W*$")
_RECIPIENT: Final = re.compile(r"\bto=(?:functions\.)?([A-Za-z_][\w.-]{0,127})")
_TOKEN: Final = re.compile(
    r"\u273f[A-Z]{1,10}\u273f:?|<[|\uff5c][^<>]{0,40}[|\uff5c]>|</?[\w:]{1,30}>|```\w{0,12}|\bjson\b"
)
_BRACKETED: Final = re.compile(r"\[(?:TOOL_CALLS|ARGS)\]|\[CALL_ID\]\w{0,64}")
# How FunctionGemma and Gemma 4 write quotes.
_QUOTE: Final = re.compile(r"<escape>|<\|\"\|>")
_REACT_CALL: Final = re.compile(r"\AAction:\s*", re.IGNORECASE)
_REACT: Final = re.compile(r"^Action:\s*`?([\w.-]{1,128})`?\s*\n+Action Input:\s*(.*)", re.DOTALL | re.MULTILINE)
_PYTHON_LINE: Final = re.compile(r"\[.*\]|[A-Za-z_][\w.]{0,127}\(.*\)", re.DOTALL)
# As clients such as Cline teach it: the tool is the tag, its arguments are tags within (cline/cline#2202).
_TOOL_TAG: Final = re.compile(
    r"^<(?P<name>[A-Za-z_][\w.-]{0,127})>(?P<body>(?:\s*<([A-Za-z_]\w{0,63})>(?:(?!</\3>).)*</\3>)*)\s*</(?P=name)>\s*\Z",
    re.DOTALL | re.MULTILINE,
)
_ATTRIBUTES_TAG: Final = re.compile(
    r"^<(?P<name>[A-Za-z_][\w.-]{0,127})(?P<body>(?:\s+\w{1,64}=\"[^\"]*\")+)\s*/>\s*\Z", re.MULTILINE
)
_ATTRIBUTE: Final = re.compile(r"(\w{1,64})=\"([^\"]*)\"")
# `<function-call name="add" arguments='{"a": 1}' />`, as Qwen2.5-Coder writes beside its own form; `<tool name="now"/>`
# with a name alone if nothing is within, where other forms have their arguments.
_ATTRIBUTE_OF_CALL: Final = r"""\s+[\w-]{1,64}\s?=\s?(?:"[^"]*"|'[^']*')"""
_CALL_TAG: Final = re.compile(
    rf"<(?:tool|function)(?:[-_]?call)?(?P<attributes>(?:{_ATTRIBUTE_OF_CALL}){{2,8}}(?=\s*/?>)"
    rf"|{_ATTRIBUTE_OF_CALL}(?=\s*(?:/>|>\s*</)))",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r"""([\w-]{1,64})\s?=\s?(?:"([^"]*)"|'([^']*)')""")
_TAGGED: Final = re.compile(r"<([A-Za-z_]\w{0,63})>(.*?)</\1>", re.DOTALL)
_TAGGED_ALONE: Final = re.compile(r"(?:\s*<([A-Za-z_]\w{0,63})>(?:(?!</\1>).)*</\1>)+\s*", re.DOTALL)
_FENCE_AT_END: Final = re.compile(r"(?:\A|\n)(?:```|~~~)(\w{0,12})[ \t]*\n(.*?)\n?(?:```|~~~)\s*\Z", re.DOTALL)
# What may stand between the name of a tool and its arguments, and behind them.
_TAG_OF_ARGUMENTS: Final = re.compile(r"\b(?:ARGS|arguments|parameters|input|use_tool|with)\b:?", re.IGNORECASE)
_AFTER_OBJECT: Final = re.compile(r"\}{0,2}\s*(?:```|~~~)?\s*(?:</[\w.-]{1,64}>\s*)*[;.)\]]?\s*")
_OPEN_FENCE: Final = re.compile(r"(?:```|~~~)\w{0,12}\s*\Z")
_FENCE_LINE: Final = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_NAMES: Final = ("name", "tool", "tool_name", "function", "function_name", "action", "recipient_name")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input", "tool_input", "action_input", "params", "kwargs")
# The template of Qwen2.5-Coder shows a call between two braces each: with llama.cpp the model writes it so.
_DOUBLED: Final = re.compile(r"\{\{(?=\s*[\"'](?:name|tool|function)[\"']\s*:)")
_OPENING: Final = re.compile(r"[{\[]")
# What Qwen2.5-Coder writes behind a result, and nothing else.
_TAGS_ALONE: Final = re.compile(r"\s*(?:</?tool_?(?:call|response|result|output)s?>\s*)+")
_MAX_CALLS: Final = 64
_MOST_OBJECTS: Final = 8
_MOST_BRACES: Final = 16
_MOST_UNCLOSED: Final = 20_000


@value
class TextCalls:
    """The calls in a text, and the text before them. `is_unread`: a call begins there that cannot be read."""

    text: str
    calls: Sequence[ToolCall] = ()
    is_unread: bool = False


def may_begin_call(text: str) -> int | None:
    """Return the first place in `text` from where on it may be a call; None if there is none."""
    found = _MAY_BEGIN.search(text)
    return found.start() if found else None


def read_text_calls(text: str, tools: Mapping[str, Json], *, may_go_on: bool = True) -> TextCalls | None:
    """Return the calls in a reply; None if it is no call. `tools` are the schemas of the offered tools by name.

    A form with a mark is a call, whatever it names. One without a mark (an object, a list, a Python call, all of the
    reply or in a fence at its end) is one if it names an offered tool. So is an object that begins a line or ends the
    reply and has the arguments that the tool takes; if the reply `may_go_on` behind it, the model did not know the
    result. And so is a reply that is nothing but objects of a name and arguments, if any tool is offered: a call of
    one that does not exist is no answer. Marks within fences and quotes are text.
    """
    text = _DOUBLED.sub("{", text)
    if (fenced := _FENCE_AT_END.fullmatch(text)) and _MARK.match(fenced[2].lstrip()):
        # All of the reply is one call in a fence.
        text = fenced[2].strip()
    if tagged := _read_call_tags(text, tools):
        return tagged
    if marked := _find_mark(text):
        calls = _take(_read_marked(text[marked.start() :], tools), tools)
        return TextCalls(text=text[: marked.start()].rstrip(), calls=calls, is_unread=not calls)
    for form, member in ((_TOOL_TAG, _TAGGED), (_ATTRIBUTES_TAG, _ATTRIBUTE)):
        if not (tag := form.search(text)) or tag["name"] not in tools:
            continue
        schema = tools[tag["name"]]
        arguments = {name: _read_typed(value, name, schema) for name, value in member.findall(tag["body"])}
        return TextCalls(text=text[: tag.start()].rstrip(), calls=_take(iter([(tag["name"], arguments)]), tools))
    for before, body, language in _list_unmarked(text):
        calls = _take(_read_unmarked(body, tools, is_code=language == "tool_code"), tools)
        if calls and all(call.name in tools for call in calls):
            return TextCalls(text=before.rstrip(), calls=calls)
        if language in {"tool_call", "tool_code", "tool_calls"}:
            return TextCalls(text=before.rstrip(), is_unread=True)
    found = _read_object_between(text, tools, may_go_on=may_go_on) or _read_last_line(text, tools)
    return found or _read_named_object(text, tools) or (_read_bare_call(text) if tools else None)


def _read_call_tags(text: str, tools: Mapping[str, Json]) -> TextCalls | None:
    """Return the calls of offered tools in tags that have name and arguments as attributes."""
    tags = [tag for tag in _CALL_TAG.finditer(text) if not _is_quoted(text, tag)]
    found: list[tuple[str, Any]] = []
    for tag in tags:
        given = {name.lower(): unescape(one or other) for name, one, other in _QUOTED.findall(tag["attributes"])}
        name = clean_name(next((given.pop(each) for each in _NAMES if each in given), ""))
        if name not in tools:
            return None
        written = next((given.pop(each) for each in _ARGUMENTS if each in given), None)
        typed = {key: _read_typed(value, key, tools[name]) for key, value in given.items()}
        if written is None and not _fits(typed, tools[name]):
            return None
        arguments = typed if written is None else read_object(written)
        if arguments is None:
            return TextCalls(text=text[: tags[0].start()].rstrip(), is_unread=True)
        found.append((name, arguments))
    return TextCalls(text=text[: tags[0].start()].rstrip(), calls=_take(iter(found), tools)) if tags else None


def _read_bare_call(text: str) -> TextCalls | None:
    """Return the calls that are all of a reply: objects of a name and arguments, or tags, which cannot be read."""
    if _TAGS_ALONE.fullmatch(text):
        return TextCalls(text="", is_unread=True)
    fenced = _FENCE_AT_END.fullmatch(text)
    body = (fenced[2] if fenced else text).strip()
    called, end = (scan_value(body, 0) if body.startswith(("{", "[")) else None) or (None, 0)
    objects = called if isinstance(called, list) else [called]
    if not _AFTER_OBJECT.fullmatch(body, end) or not all(map(_is_call, objects)):
        return None
    calls = _take(_read_calls(objects), {})
    return TextCalls(text="", calls=calls) if calls else None


def _is_call(one: Any) -> bool:  # noqa: ANN401 - any JSON
    """Return whether a JSON value is a call and nothing else, in the form of templates or in ours."""
    has_both = isinstance(one, dict) and (one.keys() == {"name", "arguments"} or one.keys() == {"tool", "arguments"})
    return has_both and isinstance(one["arguments"], dict)


def _read_object_between(text: str, tools: Mapping[str, Json], *, may_go_on: bool) -> TextCalls | None:
    """Return the first call that stands as an object in a text, with arguments that fit."""
    place = 0
    for _ in range(_MOST_BRACES):
        start = text.find("{", place)
        if start < 0:
            return None
        before, scanned = text[:start], scan_value(text, start)
        place = start + 1 if scanned is None else scanned[1]
        if scanned is None or before[-1:] in {"`", '"', "'"} or before.count("{") > before.count("}"):
            continue
        is_line = not before.rpartition("\n")[2].strip()
        if not ((is_line and may_go_on) or _AFTER_OBJECT.fullmatch(text, place)):
            continue
        calls = _take(iter(list(_read_calls(scanned[0])) or list(_read_keyed(scanned[0], tools))), tools)
        if calls and all(
            call.name in tools and _fits(json.loads(call.arguments_json), tools[call.name]) for call in calls
        ):
            return TextCalls(text=_OPEN_FENCE.sub("", before).rstrip(), calls=calls)
    return None


def _read_last_line(text: str, tools: Mapping[str, Json]) -> TextCalls | None:
    """Return the calls that are the last line of a text."""
    before, _, last = text.rstrip().rpartition("\n")
    last = _REACT_CALL.sub("", last.strip())
    if (
        not before
        or before.count("{") > before.count("}")
        or not (last.startswith("{") or _PYTHON_LINE.fullmatch(last))
    ):
        return None
    calls = _take(_read_unmarked(last, tools, is_code=False), tools)
    is_offered = bool(calls) and all(call.name in tools for call in calls)
    return TextCalls(text=before.rstrip(), calls=calls) if is_offered else None


def _read_named_object(text: str, tools: Mapping[str, Json]) -> TextCalls | None:
    """Return the call in a reply that ends with the name of a tool and an object of its arguments.

    antoinezambelli/forge#56; `[calculator]`, **`calculator`** or <calculator> above a fence, and the like. The object
    must have what the tool requires, and nothing that it does not know.
    """
    for start in [found.start() for found in _OPENING.finditer(text) if found[0] == "{"][:_MOST_OBJECTS]:
        fields, end = scan_value(text, start) or (None, 0)
        if not isinstance(fields, dict) or not fields:
            continue
        before = text[:start]
        word = _LAST_WORD.search(_TAG_OF_ARGUMENTS.sub(" ", _TOKEN.sub(_keep_name, before)))
        schema = tools.get(word[1]) if word else None
        if word is None or schema is None or not _AFTER_OBJECT.fullmatch(text, end):
            return None
        if not _list_properties(schema) or not _fits(fields, schema):
            return None
        lines = before[: before.rfind(word[1])].rpartition("\n")[0]
        return TextCalls(text=lines.rstrip(), calls=_take(iter([(word[1], fields)]), tools))
    return None


def _fits(given: Mapping[str, Any], schema: Json) -> bool:
    """Return whether arguments have what a tool requires, and nothing unknown if it names any."""
    properties, required = _list_properties(schema), schema.get("required")
    is_known = not properties or not given.keys() - properties.keys()
    return is_known and not set(required if isinstance(required, list) else ()) - given.keys()


def _keep_name(found: re.Match[str]) -> str:
    """Return what takes the place of a token: the name in a tag, which may be that of a tool."""
    return f" {found[0].strip('<>/')} " if found[0].startswith("<") and found[0][1:2].isalpha() else " "


def _find_mark(text: str) -> re.Match[str] | None:
    for found in _MARK.finditer(text):
        behind = "" if found[0].endswith("=") else text[found.end() : found.end() + 1]
        if behind not in {"`", '"'} and not _is_quoted(text, found):
            return found
    return None


def _is_quoted(text: str, found: re.Match[str]) -> bool:
    """Return whether a match stands behind a quote or within a fence."""
    is_fenced = len(_FENCE_LINE.findall(text, 0, found.start())) % 2 == 1
    return is_fenced or text[: found.start()].endswith(("`", '"', "'"))


def _list_unmarked(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield what may be a call without a mark: the text before it, the call, and the language of its fence."""
    yield "", text.strip(), ""
    if fenced := _FENCE_AT_END.search(text):
        yield text[: fenced.start()], fenced[2].strip(), fenced[1].lower()
    if react := _REACT.search(text):
        yield text[: react.start()], json.dumps({"name": react[1], "arguments": _read_input(react[2])}), ""


def _read_input(text: str) -> Any:  # noqa: ANN401 - any JSON
    text = text.strip()
    found = scan_value(text, 0) if text.startswith("{") else None
    return found[0] if found else text.partition("\n")[0].strip("`\"' ")


def _take(found: Iterator[tuple[str, Any]], tools: Mapping[str, Json]) -> Sequence[ToolCall]:
    calls: list[ToolCall] = []
    for name, arguments in found:
        cleaned = clean_name(name)
        given = _name_arguments(arguments, tools.get(cleaned))
        if cleaned and given is not None and len(calls) < _MAX_CALLS:
            calls.append(ToolCall(call_id="", name=cleaned, arguments_json=json.dumps(given, ensure_ascii=False)))
    return calls


def _name_arguments(arguments: Any, schema: Json | None) -> dict[str, Any] | None:  # noqa: ANN401 - any JSON
    """Return arguments by name; a single value is the argument of a tool that has or requires one. None: unreadable."""
    if isinstance(arguments, str) and (found := read_object(arguments)) is not None:
        return found
    if arguments is None or arguments in ("", []):
        return {}
    if isinstance(arguments, dict):
        return arguments
    properties = _list_properties(schema)
    required = (schema or {}).get("required")
    names = required if isinstance(required, list) and len(required) == 1 else list(properties)
    return {names[0]: arguments} if len(names) == 1 and not isinstance(arguments, list) else None


def _list_properties(schema: Json | None) -> Mapping[str, Any]:
    properties = (schema or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _read_marked(region: str, tools: Mapping[str, Json]) -> Iterator[tuple[str, Any]]:
    """Yield the names and arguments in a text that begins with a mark."""
    for form, ours in _KIMI if "<|open|>" in region else ():
        region = form.sub(ours, region)
    if named := list(_NAMED.finditer(region)):
        for found in named:
            # Closed with its call, a parameter needs no end of its own (ollama/ollama#18563).
            body = found["body"] + ("</parameter>" if found["end"] else "")
            yield found["name"], _read_parameters(body, tools.get(clean_name(found["name"])))
    elif glm := list(_GLM.finditer(region)):
        for found in glm:
            schema = tools.get(clean_name(found[1]))
            pairs = _GLM_PAIR.findall(found[2])
            is_whole = len(pairs) == found[2].count("<arg_key>")
            yield found[1], {key: _read_typed(text, key, schema) for key, text in pairs} if is_whole else pairs
    else:
        calls = list(_read_values(region, tools))
        yield from calls or _read_python(_TOKEN.sub("", _MARK.sub("", region)).strip(), tools)


def _read_parameters(body: str, schema: Json | None) -> Any:  # noqa: ANN401 - any JSON
    pairs = [(found["name"], found["value"]) for found in _PARAMETER.finditer(body)]
    if len(pairs) != len(_PARAMETER_BEGINS.findall(body)):
        # The last one was cut.
        return [body]
    if pairs:
        return {name: _read_typed(text, name, schema) for name, text in pairs}
    body, start = body.removesuffix("</parameter>"), body.find("{")
    if tagged := _TAGGED_ALONE.fullmatch(body) and _TAGGED.findall(body):
        return {name: _read_typed(text, name, schema) for name, text in tagged}
    return {} if not body.strip() else read_object(body[start : body.rfind("}") + 1]) if start >= 0 else body.strip()


def _read_typed(text: str, name: str, schema: Json | None) -> Any:  # noqa: ANN401 - any JSON
    """Return an argument that came as text: JSON where its schema wants anything but a text."""
    declared = _list_properties(schema).get(name)
    kind = declared.get("type") if isinstance(declared, dict) else None
    text = text.removeprefix("\n").removesuffix("\n")
    if kind in {None, "string"}:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_values(region: str, tools: Mapping[str, Json]) -> Iterator[tuple[str, Any]]:
    """Yield the calls in the JSON values of a text; an object without a name has that of the word before it."""
    region, place, failed = _QUOTE.sub('"', _BRACKETED.sub(" ", region)), 0, 0
    # Each bracket that nothing closes is looked for up to the end of the text.
    while failed < _MAX_CALLS and (found := _OPENING.search(region, place)):
        scanned = scan_value(region, found.start())
        if scanned is None and failed < _MOST_OBJECTS:
            scanned = _close_value(region, found.start())
        if scanned is None:
            if found[0] == "{":
                # What stands within an object that is not whole is an argument, whatever it looks like.
                return
            place, failed = found.end(), failed + 1
            continue
        value, end = scanned
        gap = _TOKEN.sub(" ", region[place : found.start()])
        calls = list(_read_calls(value)) or list(_read_keyed(value, tools))
        addressed = _RECIPIENT.findall(region, place, found.start())
        if addressed and isinstance(value, dict):
            calls = [(addressed[-1], value)]
        elif not calls and isinstance(value, dict) and (word := _LAST_WORD.search(gap)) and word[1] not in _ARGUMENTS:
            calls = [(word[1], value)]
        yield from calls
        place = end


def _close_value(region: str, start: int) -> tuple[Any, int] | None:
    """Return an object that lacks its last brackets before the end of its mark (vllm-project/vllm#25028)."""
    end = region.find("</", start)
    endings = ("}", "}}") if 0 < end - start < _MOST_UNCLOSED else ()
    found = (read_object(region[start:end].rstrip() + missing) for missing in endings)
    return next(((value, end) for value in found if value is not None), None)


def _read_calls(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any JSON
    """Yield the calls that a JSON value says."""
    if isinstance(value, list):
        for one in value:
            yield from _read_calls(one)
        return
    if not isinstance(value, dict):
        return
    if isinstance(value.get("tool_calls"), list):
        yield from _read_calls(value["tool_calls"])
        return
    for member in ("function", "function_call", "tool_call", "tool_use"):
        if isinstance(inner := value.get(member), dict):
            value = {**value, **inner, member: None}
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    key = next((key for key in _ARGUMENTS if key in value), None)
    if name is not None and (key is not None or value.keys() <= {*_NAMES, "id", "type"}):
        yield name, None if key is None else value[key]


def _read_unmarked(body: str, tools: Mapping[str, Json], *, is_code: bool) -> Iterator[tuple[str, Any]]:
    if body.startswith(("{", "[")):
        place = 0
        calls: list[tuple[str, Any]] = []
        while scanned := scan_value(body, place):
            calls += list(_read_calls(scanned[0])) or _read_keyed(scanned[0], tools)
            place = scanned[1]
            place += len(body[place:]) - len(body[place:].lstrip(" \t\r\n;,"))
        # Anything else in it is no call.
        if calls and place >= len(body):
            yield from calls
            return
    if is_code or _PYTHON_LINE.fullmatch(body):
        yield from _read_python(body, tools)


def _read_keyed(value: Any, tools: Mapping[str, Json]) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any JSON
    """Yield the call in an object without a member for the arguments.

    Its one member is called as a tool, `{"calculator": {"expression": "8*9"}}`, or the arguments, which must fit, stand
    beside the name: `{"tool": "calculator", "expression": "8*9"}`.
    """
    if not isinstance(value, dict):
        return
    if len(value) == 1 and isinstance(next(iter(value.values())), dict):
        yield from ((name, given) for name, given in value.items() if name in tools)
    key = next((key for key in _NAMES if isinstance(value.get(key), str)), None)
    if key is not None and (schema := tools.get(value[key])) is not None:
        given = {name: each for name, each in value.items() if name != key}
        if given and _list_properties(schema) and _fits(given, schema):
            yield value[key], given


def _read_python(text: str, tools: Mapping[str, Json]) -> Iterator[tuple[str, Any]]:
    """Yield Python calls with literal arguments: `[f(a=1), g()]`, `f(1)`, `print(f(a=1))`, `f.call(a=1)`."""
    try:
        parsed = ast.parse(text.strip().strip(";"), mode="exec").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in parsed:
        expression = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
        items = expression.elts if isinstance(expression, ast.List | ast.Tuple) else [expression]
        for item in items:
            if isinstance(item, ast.Call):
                yield from _read_python_call(item, tools)


def _read_python_call(call: ast.Call, tools: Mapping[str, Json]) -> Iterator[tuple[str, Any]]:
    name = ast.unparse(call.func).removesuffix(".call")
    if name == "print" and len(call.args) == 1 and isinstance(call.args[0], ast.Call):
        yield from _read_python_call(call.args[0], tools)
        return
    names = list(_list_properties(tools.get(clean_name(name))))
    try:
        given = {names[at]: ast.literal_eval(one) for at, one in enumerate(call.args)}
        only = next(iter(given.values()), None)
        if len(given) == 1 and isinstance(only, dict) and not only.keys() - set(names):
            # All arguments as one object: `calculator({"expression": "8*9"})`.
            given = only
        given |= {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
        json.dumps(given)
    except (ValueError, IndexError, TypeError):
        return
    yield name, given

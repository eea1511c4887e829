"""The embedded `demo` model: fixed rules behind the port of a language model, so that no key is needed."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from reasond_server.demo.arithmetic import has_value
from reasond_server.demo.computation import Worked, compute
from reasond_server.demo.extraction import find_content_words, split_question, split_sentences
from reasond_server.demo.repair_replies import read_attempt, write_repair
from reasond_server.demo.reply_writer import WRONG, Prompt, is_question, judge, read_prompt, write_reply
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import Finished, ModelFinish, Role, Text
from reasond_server.llm.stop_filter import StopFilter
from reasond_server.types import ToolCall, Usage
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter, ToolSpec

CALCULATOR = "calculator"
_MAX_CALLS = 6
_PLAIN = re.compile(r"[\d.\s+\-*/()]+|sqrt\([\d.]+\)")
_ROOT = re.compile(r"the square root of ([\d.]+)")
_RESULT = re.compile(r'"result":("?)(-?[\d.]+(?:e[+-]?\d+)?)\1', re.IGNORECASE)


@value
class Act:
    """The text of a reply, and the tool call after it; None for an answer."""

    text: str
    call: ToolCall | None = None


def choose_act(request: ChatRequest, prompt: Prompt) -> Act | None:
    """Return the reply to a computation if a calculator is offered or was called; None to answer without it."""
    is_offered = any(tool.name == CALCULATOR for tool in request.tools) and request.tool_choice != "none"
    results = list(_read_computed(find_messages_since_question(request.messages)))
    if not is_offered and not results:
        return None
    worked = compute(split_question(prompt.question)[0])
    steps = [] if worked is None else write_expressions(worked)
    if worked is None or not steps:
        return None
    done, needed = len(results), len(steps)
    if is_offered and done < needed and None not in results:
        arguments = json.dumps({"expression": steps[done]})
        call = ToolCall(call_id=f"demo{done + 1}", name=CALCULATOR, arguments_json=arguments)
        return Act(text=f"Step {done + 1} of {needed}: I have {steps[done]} calculated.", call=call)
    value = results[-1] if done == needed else None
    if value is None:
        return None
    answer = worked.answer if has_value(worked.answer, value) else f"{value:.10g}"
    return Act(text=f"The calculator says {value:.15g}.\n<answer>{answer}</answer>")


def write_expressions(worked: Worked) -> list[str]:
    """Return the steps of a computation as expressions for the calculator, at most 6."""
    return [one for step in worked.steps if (one := _to_expression(step))][:_MAX_CALLS]


def find_messages_since_question(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the last question: tools were called for earlier ones of the conversation, too."""
    places = [place for place, one in enumerate(messages) if one.role is Role.USER and is_question(one.content)]
    return messages[places[-1] + 1 :] if places else messages


def name_calls(messages: Sequence[Message]) -> Mapping[str, str]:
    """Return the tool of each call in `messages` by the id of the call."""
    return {call.call_id: call.name for message in messages for call in message.tool_calls}


def read_number(content: str) -> float | None:
    """Return the number in a result of the calculator; None for a failed or unreadable result."""
    found = _RESULT.search(content)
    return float(found[2]) if found else None


def _to_expression(step: str) -> str:
    """Return the left side of a step as an expression for the calculator, empty if that is not possible."""
    left, equals, _ = step.partition(" = ")
    text = _ROOT.sub(r"sqrt(\1)", left.strip()).replace(",", "").replace("% of ", " / 100 * ")
    text = re.sub(r"[$€£¥]", "", text.replace(" of ", " * ").replace("^", "**"))
    return text if equals and _PLAIN.fullmatch(text) else ""


def _read_computed(messages: Sequence[Message]) -> Iterator[float | None]:
    """Yield the results of the calculator in order; None for a failed or unreadable result."""
    names = name_calls(messages)
    for message in messages:
        if message.role is Role.TOOL and names.get(message.tool_call_id) == CALCULATOR:
            yield read_number(message.content)


_PLAN: Final = "Write a plan for this"
_ASK: Final = "short questions that check"
_PROGRAM: Final = "Write one Python program"
_CRITICISE: Final = "is a draft of the answer. Check it"
_SECTION_END: Final = re.compile(r"</[a-z]{1,16}(?: [a-z]{1,64})?>\n")
_MAX_QUESTION_CHARACTERS: Final = 300
_MAX_SHOWN_WORDS: Final = 8


def write_stage(messages: Sequence[Message], prompt: Prompt, *, counter: TokenCounter, max_tokens: int) -> str:
    """Return the reply to a prompt that asks for a stage before the answer; empty for any other prompt."""
    last = messages[-1] if messages else None
    if last is None or last.role is not Role.USER or not is_question(last.content):
        return ""
    instruction = _SECTION_END.split(last.content)[-1]
    if _PLAN in instruction:
        return _write_plan(prompt)
    if _ASK in instruction:
        return _write_question(prompt)
    if _PROGRAM in instruction:
        return _write_program(prompt, counter=counter, max_tokens=max_tokens)
    if _CRITICISE in instruction:
        return _write_critique(prompt)
    return ""


def _write_plan(prompt: Prompt) -> str:
    asked, _ = split_question(prompt.question)
    if worked := compute(asked):
        steps = [
            "Take the numbers from the question.",
            *["Calculate."] * min(len(worked.steps), 1),
            "State the result.",
        ]
    else:
        words = ", ".join(find_content_words(asked)[:_MAX_SHOWN_WORDS])
        steps = [f"Find the sentences that speak of: {words}.", "Choose the best of them.", "Answer with it."]
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))


def _write_question(prompt: Prompt) -> str:
    """Return the question of the prompt again, as the only one to be checked."""
    asked = " ".join(split_question(prompt.question)[0].split())[:_MAX_QUESTION_CHARACTERS].rstrip(" ?.!")
    return f"Question 1: {asked}?"


def _write_program(prompt: Prompt, *, counter: TokenCounter, max_tokens: int) -> str:
    """Return a program that works out a computation, or prints the answer to another question."""
    worked = compute(split_question(prompt.question)[0])
    expressions = [] if worked is None else write_expressions(worked)
    if expressions:
        root = "from math import sqrt\n\n" if "sqrt" in expressions[-1] else ""
        code = f'{root}print(f"{{{expressions[-1]}:.10g}}")'
    else:
        reply = write_reply(prompt, counter=counter, max_tokens=max_tokens)
        code = f"print({reply.partition('<answer>')[2].partition('</answer>')[0]!r})"
    return f"```python\n{code}\n```"


def _write_critique(prompt: Prompt) -> str:
    """Return a critique of the draft, which finds a fault only where a computation shows one."""
    ((points, reason),) = judge(prompt.question, [prompt.draft])
    if points == WRONG and compute(split_question(prompt.question)[0]):
        return f"A fault: {reason}.\n<answer>REVISE</answer>"
    return "No fault was found.\n<answer>PASS</answer>"


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
    named = [name for name in tools if name not in _UNNAMED and _split_words(name) <= words]
    if named:
        tool = tools[max(named, key=lambda name: (len(_split_words(name)), name))]
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


def _split_words(name: str) -> set[str]:
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


_PIECES_PER_TURN = 8
# This many characters are read in a millisecond; threads for such prompts would use 2 MB of memory.
_SHORT_CHARACTERS = 2048
_WARNING = (
    "answered by the embedded demo model, which follows fixed rules; provider in the [llm] section of config.toml "
    "selects a language model"
)


class DemoModel:
    """Computes arithmetic, percentages and interest, and answers questions about a text by extraction.

    Other questions are refused. It is deterministic: the same request gives the same events. `temperature` has no
    effect. It reads the last user message (`demo.prompt` has the format) and writes its reply in pieces of
    `WordPieceCounter`, one by one. It judges candidates by fixed rules (`demo.reply_writer`) and calls the tools that a
    request names. For each step of a computation it calls a calculator, if offered.
    Attempts at a repair are one-line edits by rule (`demo.repair_replies`), and plans come from rules too.
    Its answer has tags unless the instructions ask for none.

    `counter` counts exactly the tokens that it reads and writes; `context_window` is the most tokens of prompt and
    output together.
    """

    def __init__(self, *, context_window: int = 32_768) -> None:
        self.context_window = context_window
        self.counter = WordPieceCounter()

    @property
    def name(self) -> str:
        """Name of the model: demo."""
        return "demo"

    @property
    def warnings(self) -> Sequence[str]:
        """One sentence which says that the demo model answered."""
        return (_WARNING,)

    @property
    def has_native_tools(self) -> bool:
        """Always True: it calls offered tools."""
        return True

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the count of `counter`, which is exact for this model."""
        if _is_short(messages):
            return self.counter.count_prompt(messages)
        return await asyncio.to_thread(self.counter.count_prompt, messages)

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Write the reply token by token; `max_tokens` is reduced to the room in the window.

        Raises:
            ContextExhaustedError: the prompt exceeds the window.
        """
        prompt_tokens, room, pieces, call = await self._prepare_beside(request)
        stop = StopFilter(request.stop)
        written = 0
        for piece in pieces[:room]:
            written += 1
            if shown := stop.feed(piece):
                yield Text(text=shown)
            if stop.matched is not None:
                break
            if written % _PIECES_PER_TURN == 0:
                await asyncio.sleep(0)
        if held := stop.flush():
            yield Text(text=held)
        is_cut = stop.matched is None and written < len(pieces)
        reason = ModelFinish.LENGTH if is_cut else ModelFinish.STOP
        call = None if is_cut or stop.matched is not None else call
        if call is not None:
            reason = ModelFinish.TOOL_CALLS
            yield call
        yield Finished(
            reason=reason,
            usage=Usage(input_tokens=prompt_tokens, output_tokens=written + self._count_call(call), model_calls=1),
            matched_stop=stop.matched,
        )

    async def _prepare_beside(self, request: ChatRequest) -> tuple[int, int, list[str], ToolCall | None]:
        if _is_short(request.messages):
            return self._prepare(request)
        # Ranking a long text takes many milliseconds and would block the event loop.
        return await asyncio.to_thread(self._prepare, request)

    def _prepare(self, request: ChatRequest) -> tuple[int, int, list[str], ToolCall | None]:
        """Return the prompt's tokens, the most output tokens, the pieces of the whole reply, and its tool call."""
        prompt_tokens = self.counter.count_prompt(request.messages)
        room = self.context_window - prompt_tokens
        if room < 0:
            raise ContextExhaustedError(
                f"the prompt has {prompt_tokens:,} tokens, and the window of the demo model {self.context_window:,}",
                remedy="Use bounded_context, which reads a long text part by part, or a smaller chunk_size.",
                metadata={"prompt_tokens": str(prompt_tokens), "context_window": str(self.context_window)},
            )
        room = max(0, min(room, request.max_tokens))
        if attempt := read_attempt(request.messages):
            return prompt_tokens, room, self.counter.split(write_repair(request.messages, attempt)), None
        prompt = read_prompt(request.messages)
        if staged := write_stage(request.messages, prompt, counter=self.counter, max_tokens=room):
            return prompt_tokens, room, self.counter.split(staged), None
        acted = choose_named_act(request, prompt) or choose_act(request, prompt)
        call = None if acted is None else acted.call
        if acted is None or self.counter.count_text(acted.text) + self._count_call(call) > room:
            text, call = write_reply(prompt, counter=self.counter, max_tokens=room), None
        else:
            text = acted.text
        if not _wants_tags(request.messages):
            text = text.replace("<answer>", "").replace("</answer>", "")
        return prompt_tokens, room, self.counter.split(text), call

    def _count_call(self, call: ToolCall | None) -> int:
        """Return the output tokens of `call`."""
        return 0 if call is None else self.counter.count_text(call.name + call.arguments_json)


def _wants_tags(messages: Sequence[Message]) -> bool:
    """Return whether instructions ask for an answer in tags, or there are none; texts of callers have no such tags."""
    is_instructed = any(message.role is Role.SYSTEM for message in messages)
    asked = [message.content for message in messages if message.role in {Role.SYSTEM, Role.USER}]
    return not is_instructed or any("<answer>" in text for text in asked)


def _is_short(messages: Sequence[Message]) -> bool:
    return sum(len(message.content) for message in messages) <= _SHORT_CHARACTERS

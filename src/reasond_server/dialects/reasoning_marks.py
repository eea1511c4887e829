"""Hidden reasoning in the members and in the text of answers, and the control tokens that templates leave in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

FIELDS: Final = (
    *("reasoning", "reasoning_content", "reasoning_text", "thinking", "thinking_content", "thought", "thoughts"),
    *("reasoning_details", "thinking_blocks"),
)
"""Members of a message that hold its reasoning; the first one with a text counts (vLLM, DeepSeek, OpenRouter, …)."""

LONE_CLOSE: Final = "\n</think>\n"
"""Stands in the text where reasoning ended that no mark had opened: all text before it was reasoning."""

# Models whose templates end the prompt with the opening mark, so that their text has the closing one alone: DeepSeek-R1
# and V3.1, QwQ and Qwen3-Thinking, GLM-4.5 and later, MiniMax-M2, Kimi-K2-Thinking, Nemotron, EXAONE Deep, by their
# templates; hosts that tell reasoning apart drop it.
_LEAVES_OPEN: Final = re.compile(
    r"(?:^|[-_/.:])(?:r1|qwq|think|thinking|reasoner|reasoning)(?:[-_.:/]|$)"
    r"|deepseek-v3\.[1-9]|glm-(?:4\.[5-9]|[5-9])|minimax-m[1-9]|nemotron|exaone-deep",
    re.IGNORECASE,
)

# DeepSeek, Qwen; QwenLM/qwen-code#8818; Seed-OSS; MiniMax; LongCat; Magistral; Kimi-VL; Cohere; OpenThinker; Kimi K3
# (vllm-project/vllm#51399); Gemma.
_PAIRS: Final = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "seed:think", "mm:think", "antml:thinking")),
    ("<longcat_think>", "</longcat_think>"),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|think|>", "<|/think|>"),
    ("<|thinking|>", "<|/thinking|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|channel>thought", "<channel|>"),
    ("<unused94>thought", "<unused95>"),
)
# Tags that an answer may have as well, so they count at the beginning of a line alone.
_LINE_PAIRS: Final = tuple(
    (f"<{name}>", f"</{name}>")
    for name in ("thought", "thoughts", "reasoning", "reflection", "scratchpad", "analysis", "inner_monologue")
)
# Augustas11/macprovider#743, vllm-project/vllm#32587; the last two as servers leave them that drop control tokens.
_HARMONY_ENDS: Final = ("<|end|>", "<|return|>", "<|start|>assistant", "<|channel|>final<|message|>")
_HARMONY: Final = ("<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>")
_BARE: Final = ("assistantanalysis", "analysis")
_BARE_END: Final = "assistantfinal"
# Tokens that end or frame a message (cuga-project/cuga-agent#557).
_CONTROL: Final = (
    *(f"<|{name}|>" for name in ("im_end", "endoftext", "eot_id", "eom_id", "end_of_text", "begin_of_text", "end")),
    *(f"<|{name}|>" for name in ("return", "call", "EOT", "end_of_turn", "eos", "END_OF_TURN_TOKEN", "assistant")),
    *(f"<|{name}|>" for name in ("START_RESPONSE", "END_RESPONSE", "START_TEXT", "END_TEXT", "im_sep", "endofprompt")),
    *(f"<|{name}|>" for name in ("begin_of_solution", "end_of_solution", "begin_of_box", "end_of_box")),
    *("</s>", "<s>", "<eos>", "<bos>", "<pad>", "<end_of_turn>", "<start_of_turn>model", "<turn|>", "[/INST]"),
    *("<|im_start|>assistant", "<|start_header_id|>assistant<|end_header_id|>", "<|start|>assistant"),
    # Kimi K3, Kimi-VL (Blaizzy/mlx-vlm#1932), Granite, EXAONE, HyperCLOVA X, Ling, Apertus, ERNIE, Code Llama, Llama 4.
    *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>", "[EOS]"),
    *("[EOT]", "<|im_assistant|>", "<|end_of_role|>", "[|endofturn|]", "<|endofturn|>", "<|role_end|>", "<eot>"),
    *("<|assistant_end|>", "<|end_of_sentence|>", "<|eot|>", "<|fim_pad|>", "<end_of_utterance>", "<seed:eos>"),
    *("<|channel|>final<|message|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cAssistant\uff5c>"),
)
_OTHER_SPEAKERS: Final = (
    *("<|observation|>", "<|im_user|>user", "<s>[INST]", "[|user|]", "<|start_of_role|>user"),
    *("<|im_start|>user", "<|im_start|>system", "<|start_header_id|>user<|end_header_id|>", "<|user|>"),
    *("<start_of_turn>user", "<|start|>user", "<\uff5cUser\uff5c>", "<|turn>user"),
)
_CLOSES: Final[Mapping[str, Sequence[str]]] = {
    **{opening.lower(): (closing,) for opening, closing in (*_PAIRS, *_LINE_PAIRS)},
    "<think>": ("</think>", "</thinking>"),
    "<thinking>": ("</thinking>", "</think>"),
    **dict.fromkeys(_HARMONY, _HARMONY_ENDS),
    **dict.fromkeys(_BARE, (_BARE_END,)),
}
_LONE: Final = frozenset(closing.lower() for _, closing in (*_PAIRS, *_LINE_PAIRS))
_LINE_ONLY: Final = frozenset(opening for opening, _ in _LINE_PAIRS)
_SPEAKERS: Final = frozenset(map(str.lower, _OTHER_SPEAKERS))
_IN_SENTENCE: Final = re.compile(r"[\w,:][ \t]{1,8}\Z")
_WORD_BEHIND: Final = re.compile(r"[ \t]{1,8}[a-z]")
_FENCE_LINE: Final = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_CLOSING_LINE: Final = re.compile(r" {0,3}(?:`{3,}|~{3,})[ \t]*")
_QUOTES: Final = frozenset("`\"'\u201c\u201d\u2018\u2019")
# White space that is looked at behind a mark, to know whether it is spoken of.
_LOOK_AHEAD: Final = 3
_MAX_LINE: Final = 1_000


def may_leave_open(model: str) -> bool:
    """Return whether the model of this name may write reasoning that only ends with a mark, and begins with none."""
    return _LEAVES_OPEN.search(model) is not None


class Piece(NamedTuple):
    """A piece of an answer."""

    text: str
    is_reasoning: bool = False


_TEXTS_OF_REASONING: Final = ("text", "thinking", "summary", "content", "reasoning", "reasoning_content")
_KINDS_OF_REASONING: Final = frozenset({"thinking", "reasoning", "thought", "reasoning_text", "summary_text"})


def read_fields(message: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the reasoning in the members of a message."""
    for name in names:
        if name in message and (thought := _join_reasoning(message[name])):
            return thought
    return ""


def _join_reasoning(value: object) -> str:
    """Return the text of reasoning, which may be an object or a list of parts (OpenRouter, LiteLLM, Mistral)."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_join_reasoning, value))
    if isinstance(value, dict):
        return next((text for name in _TEXTS_OF_REASONING if (text := _join_reasoning(value.get(name)))), "")
    return ""


def read_content(content: object) -> Iterator[Piece]:
    """Yield the pieces of a content, which may be a list of parts; some of them are reasoning.

    microsoft/agent-framework#6978 and vercel/ai#8072 (Mistral); Gemini marks its thoughts with `thought`.
    """
    if isinstance(content, str):
        yield Piece(content)
    elif isinstance(content, list):
        for part in content:
            yield from read_content(part)
    elif isinstance(content, dict):
        kind = content.get("type")
        if kind in _KINDS_OF_REASONING or content.get("thought") is True:
            yield Piece(_join_reasoning(content), is_reasoning=True)
            return
        for name in ("text", "refusal", "value", "content"):
            if content.get(name):
                yield from read_content(content[name])
                return


def is_spoken_of(before: str, after: str) -> bool:
    """Return whether a mark between two texts is meant as its name: quoted, or in the middle of a sentence."""
    if before[-1:] in _QUOTES and after[:1] in _QUOTES:
        return True
    return bool(_IN_SENTENCE.search(before[-16:]) and _WORD_BEHIND.match(after))


def _compile(literals: Iterable[str]) -> tuple[re.Pattern[str], frozenset[str]]:
    """Return a pattern of the literals, the longest first, and all their beginnings in lower case."""
    ordered = sorted({each.lower() for each in literals}, key=len, reverse=True)
    beginnings = {each[:size] for each in ordered for size in range(1, len(each))}
    return re.compile("|".join(map(re.escape, ordered)), re.IGNORECASE), frozenset(beginnings)


_MARKS, _BEGINNINGS = _compile([*_CLOSES.keys() - set(_BARE), *_LONE, *_CONTROL, *_OTHER_SPEAKERS])
_ENDS: Final = {name: _compile(closes) for name, closes in _CLOSES.items()}
_FIRSTS: Final = re.compile("[" + re.escape("".join(sorted({each[0] for each in _BEGINNINGS if len(each) == 1}))) + "]")
_MOST_HELD: Final = max(map(len, _BEGINNINGS))


class TextPlace:
    """Where the next piece of a text stands.

    Attributes:
        line: the line before it, or the end of that.
        is_in_fence: whether a code fence is open.
    """

    def __init__(self) -> None:
        self.line = ""
        self.is_in_fence = False

    def note(self, text: str) -> None:
        """Take the next piece."""
        *lines, rest = (self.line + text).split("\n")
        for line in lines:
            self.is_in_fence ^= _FENCE_LINE.match(line) is not None
        self.line = rest[-_MAX_LINE:]

    def is_quoted(self, after: str) -> bool:
        """Return whether a mark here, before `after`, is meant as its name."""
        is_closed = self.is_in_fence and _CLOSING_LINE.fullmatch(self.line)
        return (self.is_in_fence and not is_closed) or is_spoken_of(self.line, after)


class MarkReader:
    """Separates reasoning from the answer, piece by piece, and takes out the control tokens of templates.

    A mark in a code fence, in quotes or in the middle of a sentence is text. Where reasoning ends that no mark had
    opened, the text gets LONE_CLOSE. What follows a token that begins the message of another speaker is dropped, and
    `has_invented` says so.
    """

    def __init__(self) -> None:
        self._held = ""
        self._opened = ""
        self._is_begun = False
        self._has_gap = False
        self._place = TextPlace()
        self._spoken: set[str] = set()
        self.has_invented = False

    def feed(self, text: str) -> list[Piece]:
        """Take the next piece of the content, and return what is certain now."""
        # Most pieces have nothing that may become a mark.
        if self._is_plain and not self._held and text and _FIRSTS.search(text) is None:
            return [self._note(text)]
        return self._read(text, is_end=False)

    def flush(self) -> list[Piece]:
        """Return the text that was held back, because the content ended."""
        return self._read("", is_end=True)

    @property
    def _is_plain(self) -> bool:
        return self._is_begun and not (self._opened or self._has_gap or self.has_invented)

    def _read(self, text: str, *, is_end: bool) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while self._held and (
            self._read_reasoning(pieces, is_end=is_end) if self._opened else self._read_text(pieces, is_end=is_end)
        ):
            pass
        return pieces

    def _read_reasoning(self, pieces: list[Piece], *, is_end: bool) -> bool:
        """Take reasoning up to the mark that closes it; return whether there may be more to read."""
        pattern, beginnings = _ENDS[self._opened]
        found = pattern.search(self._held)
        end = found.start() if found else len(self._held) - (0 if is_end else _count_held(self._held, beginnings))
        if end:
            pieces.append(Piece(self._held[:end], is_reasoning=True))
        self._held = self._held[found.end() if found else end :]
        if found:
            self._opened, self._has_gap, self._is_begun = "", True, True
        return found is not None

    def _read_text(self, pieces: list[Piece], *, is_end: bool) -> bool:
        """Take text up to the next mark; return whether there may be more to read."""
        if self.has_invented:
            self._held = ""
            return False
        if not self._is_begun and self._begins_bare(is_end=is_end):
            return bool(self._opened)
        found = _MARKS.search(self._held)
        end = found.start() if found else len(self._held) - (0 if is_end else _count_held(self._held, _BEGINNINGS))
        self._show(self._held[:end], pieces)
        self._held = self._held[end:]
        if found is None:
            return False
        size = found.end() - found.start()
        after = self._held[size : size + _LOOK_AHEAD]
        is_opening = not self._is_begun and found[0].lower() in _CLOSES
        if len(after) < _LOOK_AHEAD and not (is_end or is_opening):
            return False
        self._held = self._held[size:]
        self._take_mark(found[0], after, pieces)
        return True

    def _begins_bare(self, *, is_end: bool) -> bool:
        """Return whether the reply begins with a channel of harmony without its tokens, or may still do."""
        start = self._held.lstrip()
        for word in _BARE:
            rest = start[len(word) :]
            if start.startswith(word) and rest[:1].isupper():
                self._opened, self._held = word, rest
                return True
            if not is_end and word.startswith(start[: len(word)]) and not rest:
                return True
        return False

    def _take_mark(self, mark: str, after: str, pieces: list[Piece]) -> None:
        name = mark.lower()
        is_first = not self._is_begun
        is_quoted = self._is_begun and self._place.is_quoted(after)
        if is_quoted or name in self._spoken or (name in _LINE_ONLY and self._place.line.strip()):
            self._spoken |= {name, *_CLOSES.get(name, ())}
            self._show(mark, pieces)
        elif name in _CLOSES:
            self._opened = name
        elif name in _LONE:
            pieces.append(self._note(LONE_CLOSE))
            self._has_gap = self._is_begun = True
        elif name in _SPEAKERS:
            self.has_invented = self._is_begun
        else:
            self._has_gap = self._has_gap or is_first

    def _show(self, text: str, pieces: list[Piece]) -> None:
        """Add text of the answer, without the white space behind a mark."""
        if self._has_gap:
            text = text.lstrip()
        if text:
            self._has_gap = False
            self._is_begun = self._is_begun or not text.isspace()
            pieces.append(self._note(text))

    def _note(self, text: str) -> Piece:
        """Return a piece of text; where it ends says whether a later mark is quoted."""
        self._place.note(text)
        return Piece(text)


def _count_held(text: str, beginnings: frozenset[str]) -> int:
    """Return the length of the longest end of `text` that may become a mark."""
    end = text[-_MOST_HELD:].lower()
    for start in range(len(end)):
        if end[start:] in beginnings:
            return len(end) - start
    return 0

"""The tags of the prompt protocol: neutralised in untrusted text, recognised in the output of the model.

Control tokens of chat templates are neutralised too: a server may read `<|im_start|>` in a text as the beginning of a
message.

The model marks its answer as `<answer>…</answer>`, or its notes for the next window as `<continue>…</continue>`
(docs/decisions/0006-closing-tags-as-stop-strings.md). Only model output is parsed for tags, never a prompt, and only
plain ASCII spellings count there. In prompts, every spelling that a model might read as a tag is neutralised. There is
no protection against look-alike letters of other alphabets, or against malicious instructions in plain text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from enum import StrEnum

from reasond_server.llm.model import PIECE_CHARACTERS

RESERVED_TAGS = ("question", "notes", "material", "passage", "observation", "answer", "continue", "action", "think")
"""Names whose tags have a meaning in prompts or replies."""

_NAMES = "|".join(RESERVED_TAGS)
_NEUTRAL = "&lt;"
# Possessive quantifiers: without them, a million spaces would cause a million steps of backtracking.
_ASCII_TAG = re.compile(rf"<(?=\s*+(?:/\s*+)?(?:{_NAMES})(?![a-z0-9_-]))", re.IGNORECASE)
# A tag whose ">" is escaped too was not neutralised by us.
_ASCII_NEUTRAL = re.compile(rf"&lt;(?=\s*+(?:/\s*+)?(?:{_NAMES})(?![a-z0-9_-])(?!\s*+&gt;))", re.IGNORECASE)
_ESCAPED = re.compile(r"&lt;(?=[^<>&]{0,64}&gt;)")
# Characters that NFKC turns into "<", before a character that can begin a tag.
_OPENING = re.compile(r"[<\uFE64\uFF1C](?=[\s/a-z]|[^\x00-\x7F])", re.IGNORECASE)
_FOLDED_TAG = re.compile(rf"/?(?:{_NAMES})(?![a-z0-9_-])")
_FOLDED_SIZE = max(map(len, RESERVED_TAGS)) + 2
# Control tokens of the templates in common use; tokenizers match their exact letters. The text between bars must not
# have "&" or ";", so that a neutralised token inside another one is not matched.
_CONTROL_REST = (
    r"[|\uFF5C][\w\u2581./:-]{1,64}[|\uFF5C]?>"
    r"|[\w\u2581]{1,64}[|\uFF5C]>"
    r"|/?(?:s|bos|eos|pad|unk|sop|eop|bos_token|eos_token)>"
    r"|/?(?:start_of_turn|end_of_turn|start_of_image|tool_call|tool_response)>"
    r"|</?SYS>>"
)
_BRACKET_REST = r"/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK|gMASK)\]"
_NEUTRAL_BRACKET = "&#91;"
_CONTROL = re.compile(rf"<(?={_CONTROL_REST})", re.IGNORECASE)
_CONTROL_BACK = re.compile(rf"{_NEUTRAL}(?={_CONTROL_REST})", re.IGNORECASE)
_BRACKET = re.compile(rf"\[(?={_BRACKET_REST})")
_BRACKET_BACK = re.compile(rf"{_NEUTRAL_BRACKET}(?={_BRACKET_REST})")
# Invisible characters outside category Cf: fillers, grapheme joiner, variation selectors.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


# Places where a text can be cut before it is neutralised, and before it is restored.
_CUT = re.compile(r"[<\[\uFE64\uFF1C]")
# A tag whose ">" is escaped too is recognised by that ">".
_CUT_BACK = re.compile("&(?!gt;)", re.IGNORECASE)
# What can follow the second "<" of "<<SYS>>", in either case (U+017F is a long s); empty at the end of a text.
_AFTER_TWO = ("s", "S", "\u017f", "/", "")


class TagKind(StrEnum):
    """The tags with which a model ends its reply."""

    ANSWER = "answer"
    CONTINUE = "continue"
    ACTION = "action"

    def __init__(self, name: str) -> None:
        self.closing = f"</{name}>"
        """The closing tag, which is also a stop string."""


def neutralize(text: str) -> str:
    """Return `text` with `&lt;` and `&#91;` at the beginning of every reserved tag or control token.

    Tags are found in any case, with inner spaces, zero-width characters or compatibility forms (NFKC). Applying it
    twice changes nothing more. Time is linear in the length of `text`. Other threads can run between the pieces of a
    long text.
    """
    if text.isascii() and "<" not in text and "[" not in text:
        return text
    return "".join([_neutralize_piece(piece) for piece in _cut(text, _CUT)])


def _cut(text: str, places: re.Pattern[str]) -> Iterator[str]:
    """Yield `text` in pieces that can be neutralised, or restored, separately.

    A piece ends before one of `places`: a character that can begin a tag or token, because no tag or token except
    "<<SYS>>" continues behind such a character. It is longer than PIECE_CHARACTERS if no such place follows.
    """
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = start + PIECE_CHARACTERS
        while found := places.search(text, end):
            end = found.start()
            if text[end - 1] != "<" or text[end + 1 : end + 2] not in _AFTER_TWO:
                break
            end += 1
        else:
            break
        yield text[start:end]
        start = end
    yield text[start:]


def _neutralize_piece(text: str) -> str:
    is_ascii = text.isascii()
    text = _BRACKET.sub(_NEUTRAL_BRACKET, _CONTROL.sub(_NEUTRAL, text))
    if is_ascii:
        return _ASCII_TAG.sub(_NEUTRAL, text)
    return _OPENING.sub(lambda found: _NEUTRAL if _is_tag_at(text, found.end()) else found[0], text)


def restore(text: str) -> str:
    """Return the original of a neutralised text.

    The result is exact if the original had no `&lt;`, `&#91;`, `&gt;` or compatibility form of `<` at the place of a
    reserved tag or control token. A tag that is escaped at both ends, `&lt;answer&gt;`, is not changed: its author
    escaped it on purpose.
    """
    if "&" not in text:
        return text
    is_ascii = text.isascii()
    text = "".join([_BRACKET_BACK.sub("[", _CONTROL_BACK.sub("<", piece)) for piece in _cut(text, _CUT_BACK)])
    return "".join([_restore_tags(piece, is_ascii=is_ascii) for piece in _cut(text, _CUT_BACK)])


def _restore_tags(text: str, *, is_ascii: bool) -> str:
    """Return a piece with its tags restored; `is_ascii` says whether the whole text is ASCII."""
    if is_ascii:
        return _ASCII_NEUTRAL.sub("<", text)
    escaped = {found.start() for found in _ESCAPED.finditer(text)}
    return re.sub(
        _NEUTRAL,
        lambda found: "<" if found.start() not in escaped and _is_tag_at(text, found.end()) else found[0],
        text,
    )


def _is_tag_at(text: str, at: int) -> bool:
    """Return whether a reserved name, as a reader sees it, is at position `at`."""
    folded = ""
    while at < len(text) and len(folded) < _FOLDED_SIZE:
        part = _fold(text[at])
        at += 1
        if part.isspace():
            if folded.strip("/"):
                break
        elif part in {"<", "&"}:
            break
        else:
            folded += part
    return _FOLDED_TAG.match(folded) is not None


def _fold(char: str) -> str:
    """Return `char` in a form that can be compared with ASCII letters; empty for an invisible character."""
    if char.isascii():
        return char.lower()
    if unicodedata.category(char) == "Cf" or _INVISIBLE.match(char):
        return ""
    return unicodedata.normalize("NFKC", char).casefold()

"""What is ours in a reply, taken out of it: fences and nonces of the prompt, doubled answer tags, placeholders.

The rule for several answers: **the last one that is whole counts**, as far as the model wrote it; a provider that
supports stop strings ends the reply at the first `</answer>`. `<answer>` is taken for `</answer>` where nothing follows
it. What only repeats the prompt ("the final answer") is no answer.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.context.answers import is_placeholder, strip_tags
from reasond_server.context.own_tags import cut_own_words, find_own_words
from reasond_server.context.replies import parse_reply
from reasond_server.context.tags import RESERVED_TAGS, TagKind
from reasond_server.context.vote_forms import find_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.context.own_tags import TagCutter
    from reasond_server.context.replies import ParsedReply
    from reasond_server.llm.model import Message

_NONCE: Final = r"[a-z]{16,64}"
_NAMES: Final = "|".join(RESERVED_TAGS)
_SHOWN: Final = "question|notes|material|passage"
# What a strategy looks for in a text by itself is left there.
_FENCED: Final = re.compile(rf"<({_SHOWN}) ({_NONCE})[^<>]{{0,200}}>(?:(?!<\1 ).)*?</\1 \2>", re.DOTALL)
_FENCE: Final = re.compile(rf"</?(?:{_SHOWN}|answer|continue) {_NONCE}[^<>]{{0,200}}>")
_ANY_FENCE: Final = re.compile(rf"</?(?:{_NAMES}) {_NONCE}[^<>]{{0,200}}>")
_MARKED_TAG: Final = re.compile(rf"<(/?)(answer|continue) {_NONCE}>")
_WORD: Final = re.compile(r"[a-z]{16}")
_MARK_OF_FENCE: Final = re.compile(rf"<(?:{_NAMES}) ({_NONCE})[^<>]{{0,200}}>")
# Escaped it is a text that speaks of the tag, but at an end.
_ESCAPED_AT_END: Final = re.compile(r"\A(?:\s*&lt;/?answer>)+|(?:&lt;/?answer>\s*)+\Z", re.IGNORECASE)
_ANSWER_TAG: Final = re.compile(r"<[ \t]{0,2}/?[ \t]{0,2}answer[ \t]{0,2}/?>", re.IGNORECASE)


def settle_reply(
    parsed: ParsedReply, messages: Sequence[Message] = (), *, behind: str = "", cutter: TagCutter | None = None
) -> ParsedReply:
    """Return a parsed reply without what is ours.

    `messages` are the prompt, whose nonce is taken out wherever it stands. `behind` is what came behind the closing
    tag. `cutter` knows the tags of ours that may come back without a nonce.
    """
    if parsed.kind is None and _MARKED_TAG.search(parsed.text):
        plain = parse_reply(_MARKED_TAG.sub(r"<\1\2>", parsed.text), kinds=tuple(TagKind), is_stop=not parsed.is_cut)
        parsed = replace(plain, thinking=parsed.thinking + plain.thinking, is_cut=parsed.is_cut)
    nonces = _find_nonces(parsed.text + parsed.content + behind, messages)
    text, content = _FENCE.sub("", _FENCED.sub("", parsed.text)), parsed.content
    if parsed.kind is TagKind.ANSWER:
        content, behind = _ANY_FENCE.sub("", _cut_behind(content)), _ANY_FENCE.sub("", behind)
    for nonce in nonces:
        text, content, behind = [part.replace(nonce, "") for part in (text, content, behind)]
    if parsed.kind is TagKind.ANSWER:
        content, earlier = _choose_answer(content, behind)
        text += earlier
    if cutter is not None:
        words = find_own_words(messages)
        parts = [cutter.cut_whole(part, messages, kind=parsed.kind) for part in (text, content)]
        text, content = [cut_own_words(part, words) for part in parts]
    if (text, content) == (parsed.text, parsed.content):
        return parsed
    return replace(parsed, text=text, content=content)


def _cut_behind(content: str) -> str:
    """Return the content before a closing tag that has a nonce, which no parser takes for one."""
    found = re.search(rf"</answer {_NONCE}>", content)
    return content[: found.start()] if found else content


def _choose_answer(content: str, behind: str) -> tuple[str, str]:
    """Return the answer among those that a reply gives, and the text before it."""
    later = parse_reply(behind, kinds=(TagKind.ANSWER,), is_stop=False) if "<" in behind else None
    parts = _split_answers(content)
    if later is not None and later.is_closed:
        parts += [*_split_answers(later.text), *_split_answers(later.content)]
    answers = [part for part in parts if part.strip() and not is_placeholder(part)]
    if not answers:
        return "", ""
    last = answers[-1]
    if len(answers) > 1 and find_value(answers[0]) and not find_value(last):
        last = answers[0]
    return last, "\n".join([part for part in answers if part is not last])


def _split_answers(content: str) -> list[str]:
    """Return what stands between answer tags within `content`; code is left whole."""
    if "answer" in content and "```" not in content:
        return [_ESCAPED_AT_END.sub("", part) for part in _ANSWER_TAG.split(content)]
    return [strip_tags(content)] if "answer>" in content.casefold() else [content]


def _find_nonces(text: str, messages: Sequence[Message]) -> Sequence[str]:
    """Return the marks of the fences in `messages` that are in `text`."""
    if not _WORD.search(text):
        return ()
    marks = {found[1] for message in messages if (found := _MARK_OF_FENCE.search(message.content))}
    return [mark for mark in marks if mark in text]

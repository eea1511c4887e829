"""What is ours in a reply, taken out of it: fences, tags, sentences of the prompt, doubled answer tags, placeholders.

The rule for several answers: **the last one that is whole counts**, as far as the model wrote it; a provider that
supports stop strings ends the reply at the first `</answer>`. `<answer>` is taken for `</answer>` where nothing follows
it. What only repeats the prompt ("the final answer") is no answer.

The rule for tags that come back without the mark of the run (docs/decisions/0074-our-tags-in-replies.md): they are cut
out of replies and of their streams. They stay in code, in quotes, in the middle of a sentence, and where the caller's
own text has a tag of that name or speaks of markup. A section that repeats the prompt, and a sentence of ours, are cut
out whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from reasond_server.context.answers import is_placeholder, strip_tags
from reasond_server.context.replies import ParsedReply, parse_reply
from reasond_server.context.sections import FENCE_RULE
from reasond_server.context.tags import RESERVED_TAGS, TagKind
from reasond_server.context.vote_forms import find_value
from reasond_server.dialects.answer_marks import FRAMES
from reasond_server.dialects.reasoning_marks import TextPlace
from reasond_server.llm.model import Message, Role

_NONCE: Final = r"[a-z]{16,64}"
_RESERVED: Final = "|".join(RESERVED_TAGS)
_SHOWN: Final = ("question", "notes", "material", "passage")
_SHOWN_NAMES: Final = "|".join(_SHOWN)
# What a strategy looks for in a text by itself is left there.
_FENCED: Final = re.compile(rf"<({_SHOWN_NAMES}) ({_NONCE})[^<>]{{0,200}}>(?:(?!<\1 ).)*?</\1 \2>", re.DOTALL)
_FENCE: Final = re.compile(rf"</?(?:{_SHOWN_NAMES}|answer|continue) {_NONCE}[^<>]{{0,200}}>")
_ANY_FENCE: Final = re.compile(rf"</?(?:{_RESERVED}) {_NONCE}[^<>]{{0,200}}>")
_MARKED_TAG: Final = re.compile(rf"<(/?)(answer|continue) {_NONCE}>")
_MARK_OF_FENCE: Final = re.compile(rf"<(?:{_RESERVED}) ({_NONCE})[^<>]{{0,200}}>")
# Escaped it is a text that speaks of the tag, but at an end.
_ESCAPED_AT_END: Final = re.compile(r"\A(?:\s*&lt;/?answer>)+|(?:&lt;/?answer>\s*)+\Z", re.IGNORECASE)
_ANSWER_TAG: Final = re.compile(r"<[ \t]{0,2}/?[ \t]{0,2}answer[ \t]{0,2}/?>", re.IGNORECASE)


def settle_reply(
    parsed: ParsedReply,
    messages: Sequence[Message] = (),
    *,
    behind: str = "",
    cutter: TagCutter | None = None,
    kinds: Collection[TagKind] = tuple(TagKind),
) -> ParsedReply:
    """Return a parsed reply without what is ours.

    `messages` are the prompt, whose nonce is taken out wherever it stands. `behind` is what came behind the closing
    tag. `cutter` knows the tags of ours that may come back without a nonce. `kinds` are the tags that were asked for;
    what others hold is text.
    """
    if parsed.kind is None and any(found[2] in kinds for found in _MARKED_TAG.finditer(parsed.text)):
        plain = parse_reply(_MARKED_TAG.sub(r"<\1\2>", parsed.text), kinds=tuple(TagKind), is_stop=not parsed.is_cut)
        parsed = replace(plain, thinking=parsed.thinking + plain.thinking, is_cut=parsed.is_cut)
    if parsed.kind is TagKind.ANSWER and _is_copied(parsed, messages):
        parsed = replace(parsed, content="")
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
        if parsed.kind is TagKind.ANSWER and is_placeholder(content):
            content = ""
    if (text, content) == (parsed.text, parsed.content):
        return parsed
    return replace(parsed, text=text, content=content)


def _is_copied(parsed: ParsedReply, messages: Sequence[Message]) -> bool:
    """Return whether the answer is the example of the prompt, copied together with the words before it.

    What the model itself has answered before it may say again.
    """
    words = parsed.text.rstrip()[-_FEWEST_CHARACTERS:]
    shown = f"{words} <answer>{parsed.content.strip()}</answer>"
    asked = [message.content for message in messages if message.role is not Role.ASSISTANT]
    return len(words) == _FEWEST_CHARACTERS and any(shown in each for each in asked)


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
    if "answer" in content.casefold() and "```" not in content:
        return [_ESCAPED_AT_END.sub("", part) for part in _ANSWER_TAG.split(content)]
    return [strip_tags(content)] if "answer>" in content.casefold() else [content]


def _find_nonces(text: str, messages: Sequence[Message]) -> Sequence[str]:
    """Return the marks of the fences in `messages` that are in `text`."""
    marks = {found[1] for message in messages if (found := _MARK_OF_FENCE.search(message.content))}
    return [mark for mark in marks if mark in text]


# What a strategy looks for by itself, such as an action or an observation, is left there.
_NAMES: Final = frozenset({*_SHOWN, "continue", "answer"})
_OURS: Final = "|".join(sorted(_NAMES))
_MOST_INSIDE: Final = 264
_TAG: Final = re.compile(
    rf"<[ \t]{{0,2}}(?P<end>/?)[ \t]{{0,2}}(?P<name>{_OURS}|{FRAMES})(?:[ \t][^<>]{{0,{_MOST_INSIDE}}})?/?>",
    re.IGNORECASE,
)
_UNFINISHED: Final = re.compile(
    rf"<[ \t/]{{0,5}}(?:[a-z_]{{0,12}}|(?:{_OURS}|{FRAMES})[ \t][^<>]{{0,{_MOST_INSIDE}}})/?\Z", re.IGNORECASE
)
_OBSERVATION: Final = "observation"
_SECTION: Final = re.compile(
    rf"<({_SHOWN_NAMES}|{_OBSERVATION}(?=[^<>]{{1,{_MOST_INSIDE}}}call=\"))(?: [^<>]{{0,{_MOST_INSIDE}}})?>"
    r"((?:(?!<\1).)*?)</\1\s?>",
    re.DOTALL,
)
_ONLY_FRAMES: Final = re.compile(rf"(?:\s*</?(?:{FRAMES})>)+\s*", re.IGNORECASE)
_LOOK_AHEAD: Final = 3
_MARKED: Final = re.compile(rf"<(?:{_SHOWN_NAMES}|observation) [a-z]{{16,64}}[^<>]{{0,200}}>")
_ESCAPED: Final = re.compile(rf"&lt;\s{{0,2}}/?\s{{0,2}}({_OURS})(?![a-z0-9_-])", re.IGNORECASE)
_BARE: Final = re.compile(rf"<\s{{0,2}}/?\s{{0,2}}({_SHOWN_NAMES})\s{{0,2}}/?>", re.IGNORECASE)
_MARKUP: Final = re.compile(r"\b(?:x?html\d?|xml|svg|jsx|markup)\b", re.IGNORECASE)
_QUESTION: Final = re.compile(r"<question ([a-z]{16,64})>\n(.*?)\n</question \1>", re.DOTALL)
_TAG_WORD: Final = re.compile(r"\btags?\b", re.IGNORECASE)
_OPENING: Final = re.compile(r"<(\w{1,16}) ([a-z]{16,64})[^<>]{0,200}>")
_RULE: Final = FENCE_RULE.strip()
# Of runs of characters, because a look behind at every place takes seven times as long.
_SENTENCE: Final = re.compile(r"[^\n.:?!]*(?:[.:?!](?! )[^\n.:?!]*)*(?:\n|[.:?!] )?")
_FEWEST_CHARACTERS: Final = 21
_FEWEST_WORDS: Final = 4
_EDGES: Final = " \t\r\n\"'`*_#>[](){}.,:;-"


def find_own_names(
    messages: Sequence[Message], kinds: Collection[TagKind], before: Sequence[Message] = ()
) -> frozenset[str]:
    """Return the names of the tags that are to be cut out of the reply to `messages`; none for a prompt without fences.

    `kinds` are the tags that the reply is asked for. Of an answer that it is not asked for, a strategy reads the tag by
    itself; the words of turns stand behind those of the caller, and no turn does. `before` is what the caller put
    before `messages`.
    """
    asked = [message.content for message in messages if message.role is not Role.ASSISTANT]
    if not any(_MARKED.search(each) for each in asked):
        return frozenset()
    said = [message.content for message in before if message.role is not Role.ASSISTANT]
    users = [*said, *(message.content for message in messages if message.role is Role.USER), _split_system(asked[0])[0]]
    if any(_MARKUP.search(each) for each in users):
        return frozenset()
    questions = [found[2] for each in users for found in _QUESTION.finditer(each)]
    if any(_TAG_WORD.search(each) for each in questions):
        return frozenset()
    is_answer = TagKind.ANSWER in kinds or not asked[0].startswith(_RULE)
    names = {*_SHOWN, "continue", *(("answer",) if is_answer else ())}
    if TagKind.ACTION not in kinds:
        # Who asks for actions looks for invented observations by itself.
        names.add(_OBSERVATION)
    for each in (*said, *asked):
        names -= {found[1].lower() for found in _ESCAPED.finditer(each)}
        names -= {found[1].lower() for found in _BARE.finditer(each.replace(_RULE, ""))}
    return frozenset(names)


class TagCutter:
    """Cuts tags of ours out of a text that comes in pieces, and closing tags of frames that it did not open.

    `find_names` returns the names of ours; it is asked when the text has a tag.
    """

    def __init__(self, find_names: Callable[[], frozenset[str]]) -> None:
        self._find_names = find_names
        self._held = ""
        self._place = TextPlace()
        self._kept: set[str] = set()

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the tags to be cut; empty if none is."""
        return self._find_names()

    def cut_whole(self, text: str, messages: Sequence[Message], *, kind: TagKind | None) -> str:
        """Return a whole text without tags of ours, and without sections that only repeat the prompt.

        Of a text of the `kind` CONTINUE, somebody else reads an answer in it.
        """
        if "<" not in text or not self.names:
            return text
        names = self.names - {"answer"} if kind is TagKind.CONTINUE else self.names

        def cut(found: re.Match[str]) -> str:
            inner = found[2].strip()
            if found[1] == _OBSERVATION:
                # The result of a tool may be the answer.
                return inner if found[1] in names else found[0]
            is_said = found[1] in names and any(inner in message.content for message in messages)
            return "" if is_said else found[0]

        text = TagCutter(lambda: names).feed(_SECTION.sub(cut, text), is_end=True)
        return "" if _ONLY_FRAMES.fullmatch(text) else text

    def feed(self, text: str, *, is_end: bool = False) -> str:
        """Take the next piece, the last one with `is_end`, and return the text that is certain now."""
        if not self._held and "<" not in text:
            self._place.note(text)
            return text
        text, self._held, at = self._held + text, "", 0
        shown: list[str] = []
        for found in _TAG.finditer(text):
            after = text[found.end() : found.end() + _LOOK_AHEAD]
            if len(after) < _LOOK_AHEAD and not is_end:
                unfinished: re.Match[str] | None = found
                break
            self._take(text[at : found.start()], shown)
            at = found.end()
            if not self._is_ours(found, after):
                self._take(found[0], shown)
        else:
            unfinished = None if is_end else _UNFINISHED.search(text, at)
        end = unfinished.start() if unfinished else len(text)
        self._held = text[end:]
        self._take(text[at:end], shown)
        return "".join(shown)

    def _take(self, text: str, shown: list[str]) -> None:
        self._place.note(text)
        shown.append(text)

    def _is_ours(self, found: re.Match[str], after: str) -> bool:
        """Return whether a tag is to be cut; one that is spoken of once is kept from there on."""
        name = found["name"].lower()
        is_named = name in self.names or (name not in _NAMES and bool(found["end"] and self.names))
        is_spoken = self._place.line.count("`") % 2 == 1 or self._place.is_quoted(after)
        if name not in self._kept and is_named and not is_spoken:
            return True
        self._kept.add(name)
        return False


def cut_own_words(text: str, words: str) -> str:
    """Return `text` without the sentences that repeat one of `words`, of at least 21 characters.

    `words` are what `find_own_words` returns. Nothing is left of a text that is only a part of them. Code is kept.
    """
    if not (words and _is_long(text, text)) or "```" in text:
        return text
    lowered = text.casefold()
    written = [each for part in _SENTENCE.findall(words) if (each := part.strip(_EDGES)) in lowered]
    written = [each for each in written if len(each) >= _FEWEST_CHARACTERS]
    left, cut = "", ""
    for part in _SENTENCE.findall(text):
        small = part.casefold()
        bare = small.strip(_EDGES)
        is_ours = bare in words and len(bare) >= _FEWEST_CHARACTERS
        is_ours = is_ours or (bool(written) and any(each in small for each in written))
        # A short piece is ours where it goes on with what was cut before it.
        if is_ours or (cut and (cut + small).strip(_EDGES) in words):
            cut += small
        else:
            left += part
            cut = ""
    bare = left.casefold().strip(_EDGES)
    return "" if _is_long(left, bare) and bare in words else left


def _is_long(text: str, bare: str) -> bool:
    """Return whether a text, `bare` without its edges, is long enough to be known as ours."""
    return len(bare) >= _FEWEST_CHARACTERS or len(text.split()) >= _FEWEST_WORDS


def find_own_words(messages: Sequence[Message]) -> str:
    """Return what a prompt says in words of ours, in small letters; nothing for a prompt without fences.

    Of a system message that has more than ours, it is the paragraph with the rule of the fences.
    """
    system = messages[0].content if messages else ""
    if not system.startswith(_RULE):
        return _split_system(system)[1].casefold()
    return "\n".join([_RULE, *(_drop_fenced(one.content) for one in messages if one.role is Role.USER)]).casefold()


def _split_system(system: str) -> tuple[str, str]:
    """Return what stands before the paragraph of a system message with the rule of the fences, and that paragraph."""
    at = system.find(_RULE)
    if at < 0:
        return system, ""
    start = system.rfind("\n\n", 0, at) + 1
    return system[:start], system[start : at + len(_RULE)]


def _drop_fenced(content: str) -> str:
    """Return what stands outside the fences of a message."""
    outside, at = [], 0
    while found := _OPENING.search(content, at):
        end = content.find(closing := f"</{found[1]} {found[2]}>", found.end())
        if end < 0:
            break
        outside.append(content[at : found.start()])
        at = end + len(closing)
    return "\n".join([*outside, content[at:]])

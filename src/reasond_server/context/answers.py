r"""The final answer of a reply without a tagged answer, for every strategy.

The last of these that is in the text is its answer:

- the content of `\boxed{…}` or `<final_answer>…</final_answer>`;
- what follows an announcement, in any of the languages of `dialects.answer_marks`: "The answer is", "Answer:", a
  heading "Final Answer", `A:`, `####`, Antwort:, 答案是; not after "the answer is not".

Else it is what the last line concludes: all of it if that is a value (a number, a quantity, the letter of a choice) or
stands in bold; the value in bold, or the only number, of a line that begins as a conclusion does ("So", "Therefore" …).
A text with code or data has no such answer in its last line. Else there is none.

Of the line of an announcement, the answer is the first sentence. If the line ends with the announcement, it is the next
line, or all lines behind it unless the first of them has a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from reasond_server.context.equations import NUMBER, find_worked_value, has_two_unknowns
from reasond_server.context.sections import FENCE_RULE
from reasond_server.context.vote_forms import find_value
from reasond_server.dialects.answer_marks import (
    ABBREVIATIONS,
    ANNOUNCEMENT,
    ANSWERED,
    CHOSEN,
    CONCLUSIONS,
    EXAMPLE_ANSWER,
    EXAMPLE_FUNCTION,
    EXPLANATIONS,
    FORMS,
    HEADING,
    NEGATIONS,
    PLACEHOLDERS,
    REFERENCES,
    REMARKS,
    SIGNS,
    SOURCES,
    STEPS,
)
from reasond_server.dialects.code_blocks import find_code
from reasond_server.dialects.written_formulas import read_latex

_EMPHASIS = re.compile(r"(?<![^\s(])(\*{2,3}|_{2})(?=\S)([^*]{1,400})(?<=\S)\1(?![^\s.,:;!?)])")
_MARK = re.compile(
    rf"(?<![^\W\u3040-\u9fff\uac00-\ud7a3])(?:{ANSWERED}|{ANNOUNCEMENT})"
    rf"|{CHOSEN}|^[ \t]{{0,8}}(?:#{{1,6}}[ \t]|[*_]{{2,3}})[ \t]{{0,4}}(?:{HEADING})[*_:\uff1a]{{0,4}}[ \t]{{0,8}}$"
    rf"|\bfinal answer\b(?=[*_\s]{{0,4}}[$\\*\d\n])|^[ \t]{{0,8}}(?:a|答)[:\uff1a]",
    re.IGNORECASE | re.MULTILINE,
)
_LAST_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t](?=[^\n]*\S\s*\Z)", re.MULTILINE)
# `<answer>` is only left in a text where it is in a fence, or where its closing tag does not come. Prompts write "<" of
# a material as "&lt;", and models end so too; elsewhere that is how a text quotes a tag.
_TAGGED = re.compile(
    r"<(final_answer|finalanswer|final|result|ans|response)>\s*(?P<inner>.{1,2000}?)\s*</\1>"
    r"|^[ \t]{0,8}&lt;answer(?:>|&gt;)\s*(?P<escaped>(?:(?!&lt;/?answer).){1,2000}?)\s*(?:&lt;/?answer(?:>|&gt;)\s*)?\Z"
    r"|\[(?:final[_ ])?answer\]\s*(?P<square>.{1,2000}?)\s*\[/(?:final[_ ])?answer\]"
    r"|<answer>\s*(?P<last>.{1,2000}?)\s*(?:</?answer>\s*)?(?:(?:```|~~~)\s*)?\Z",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_SOURCE = re.compile(SOURCES, re.IGNORECASE)
_STEP = re.compile(rf"(?<!\w)(?:{STEPS}) (?:the |das |dem |le |la |el |il )?\Z")
_BARE = re.compile(rf"(?:{HEADING})\W*", re.IGNORECASE)
# Such an announcement says what the answer is not, or how it looks.
_NEGATED = re.compile(rf"[*_ ]{{0,3}}(?:(?:{NEGATIONS})(?![^\W\u3040-\u9fff])|{FORMS})", re.IGNORECASE)
_OPTIONS = re.compile(r"^[ \t]{0,8}b:", re.IGNORECASE | re.MULTILINE)
_ENDED_EMPHASIS = re.compile(r"^[*_]{1,3}(?![^\s:=\uff1a])[ \t:=\uff1a]*")
_DECORATION: Final = " \t*_#=>~$[]\\-"
_LIST_MARK = re.compile(r"[-*•] |\d{1,2}[.)] |\|")
_FENCED = re.compile(r"(`{3,}|~{3,})[^\n`]*\n(.*?)(?:\n {0,3}\1|\Z)", re.DOTALL)
_FENCE_OR_DATA = re.compile(r"^ {0,3}(?:```|~~~)|^\s*[\[{]\s*[\"{]", re.MULTILINE)
_EXPLAINED = re.compile(rf"[*_#(]{{0,3}}(?:{EXPLANATIONS})(?![^\W\u3040-\u9fff])", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s)|[。\uff01\uff1f]")
_REMARK = re.compile(REMARKS, re.IGNORECASE)
_EDGES: Final = " \t\r\n\"'`*_[](){}<>.:"
_TAGS_BEFORE = re.compile(r"(?:\s*+(?:<|&lt;)/?answer(?:>|&gt;))++", re.IGNORECASE)
_TAG_AT_END = re.compile(r"(?:<|&lt;)/?answer(?:>|&gt;)\Z", re.IGNORECASE)
_TAG_CHARACTERS: Final = len("&lt;/answer&gt;")
# Of a longer text only the end is looked at.
_MOST_READ: Final = 20_000
_INITIAL = re.compile(r"[A-Z]\.")
_MOST_MARKS: Final = 20
# What an announcement looks at behind its line.
_LOOK_AHEAD: Final = 6
_LOOK_BEHIND: Final = 12
_MOST_LINES: Final = 8
# "B. Paris" and "C. Darwin" are shorter than what follows an answer that is a letter.
_FEWEST_WORDS_BEHIND_A_CHOICE: Final = 3
_MOST_LINE: Final = 400
_MOST_VALUE: Final = 60
_MOST_WORDS_OF_SENTENCE: Final = 25
_BOXED = re.compile(r"\\f?boxed ?\{")
_BOLD = re.compile(r"(?:\*\*|__)([^*_]{1,200})(?:\*\*|__)")
_CONCLUSION = re.compile(rf"[*_]{{0,3}}(?:{CONCLUSIONS})(?![^\W\u3040-\u9fff])", re.IGNORECASE)
_LATER_CONCLUSION = re.compile(
    rf"[.,;:!] (?:and |und |et |y |e )?(?=(?:{CONCLUSIONS})(?![^\W\u3040-\u9fff]))", re.IGNORECASE
)
_INLINE_MATH = re.compile(r"\$(?=\S)([^$\n]{1,200})(?<=\S)\$(?!\d)")
_POLITE_END = re.compile(
    r"\n\s*(?:let me know|(?:i )?hope (?:this|that)|feel free|if you (?:have|need|would)|would you like)"
    r"[^\n]{0,200}\s*\Z",
    re.IGNORECASE,
)
_MAX_PLAIN_ANSWER: Final = 200


def extract_answer(text: str) -> str:
    """Return what a reply without a tagged answer is counted or graded as; empty if no answer is found.

    That is its answer by the rules above, else the value that its calculation comes to (`find_worked_value`), else all
    of a text of at most 200 characters. Markdown around a marked answer is removed.
    """
    prose, answer = split_answer(text)
    if prose:
        return answer
    worked = "" if _FENCE_OR_DATA.search(answer) else find_worked_value(_POLITE_END.sub("", answer[-_MOST_READ:]))
    if worked and not is_placeholder(worked):
        return worked
    return answer if len(answer) <= _MAX_PLAIN_ANSWER else ""


def find_answer(text: str) -> str:
    """Return the final answer that a text marks or concludes with; empty if it does neither."""
    text = text[-_MOST_READ:].strip()
    if marked := find_marked_answer(text):
        return marked
    concluded = strip_tags(_read_conclusion(text))
    return "" if is_placeholder(concluded) else concluded


def find_marked_answer(text: str) -> str:
    """Return the final answer that a text marks, as by a box or "The answer is"; empty if it marks none."""
    about = ""
    for marked in _list_marked(text[-_MOST_READ:].strip()):
        answer = strip_tags(marked)
        if not answer or is_placeholder(answer):
            continue
        if not _SOURCE.match(answer):
            return answer
        about = about or answer
    return about


def split_answer(text: str) -> tuple[str, str]:
    """Return the reasoning and the answer of a whole reply without a tagged answer.

    The reasoning is all of the text if it has an answer by the rules above. Else the text is the answer, unless it only
    repeats the prompt.
    """
    text = strip_tags(text)
    if answer := find_answer(text):
        return ("", answer) if answer == text else (text, answer)
    return ("", "") if is_placeholder(text) else ("", text)


def strip_tags(text: str) -> str:
    """Return `text` without the answer tags and white space around it."""
    found = _TAGS_BEFORE.match(text)
    start, end = found.end() if found else 0, len(text.rstrip())
    while (tag := _TAG_AT_END.search(text, max(start, end - _TAG_CHARACTERS), end)) is not None:
        end = tag.start()
        while end > start and text[end - 1].isspace():
            end -= 1
    return text[start:end].strip()


# What nobody answers by chance.
_EXAMPLES: Final = (EXAMPLE_ANSWER, EXAMPLE_FUNCTION)
_FEWEST_OURS: Final = 24
_RULES: Final = tuple(each for each in FENCE_RULE.strip().split(". ") if len(each) >= _FEWEST_OURS)


def is_placeholder(answer: str) -> bool:
    """Return whether an answer repeats what is ours in a prompt: its example, its rule, or a name between its tags.

    A program of some length may try itself with the number of the example, or stand behind its function.
    """
    is_long_program = len(answer) > _MAX_PLAIN_ANSWER and _FENCED.search(answer) is not None
    if any(each in answer for each in (_RULES if is_long_program else _RULES + _EXAMPLES)):
        return True
    if len(answer) > _MOST_VALUE:
        return False
    bare = answer.replace("&lt;", "<").strip(_EDGES)
    return bare.casefold() in PLACEHOLDERS if bare else "." in answer


def _list_marked(text: str) -> Iterator[str]:
    """Yield what stands at the marks, the last one first; empty where nothing stands there."""
    found = [*_find_announcements(text), *_BOXED.finditer(text), *_TAGGED.finditer(text)]
    # In code, `result = []` announces nothing.
    code = find_code(text)
    marks = [mark for mark in found if not any(start <= mark.start() < end for start, end in code)]
    for mark in sorted(marks, key=lambda found: -found.start())[:_MOST_MARKS]:
        if mark.re is _BOXED:
            yield _read_boxed(text, mark.end())
        elif mark.re is _TAGGED:
            yield mark["inner"] or mark["escaped"] or mark["square"] or mark["last"]
        elif not (mark[0].lstrip().casefold() == "a:" and _OPTIONS.search(text)) and not _NEGATED.match(
            text, mark.end()
        ):
            read = _read_marked(text, mark)
            before = text[max(0, mark.start() - _LOOK_BEHIND) : mark.start()].casefold()
            is_about = before.endswith(REFERENCES) and not find_value(read)
            if not is_about and not (_STEP.search(before) and _is_within_steps(text, mark)):
                yield read


def _is_within_steps(text: str, mark: re.Match[str]) -> bool:
    """Return whether an announcement has no verb, and more than one line behind it."""
    behind = [line for line in text[mark.end() :].split("\n") if line.strip(_DECORATION)]
    return len(behind) > 1 and _BARE.fullmatch(mark[0]) is not None


def _find_announcements(text: str) -> Sequence[re.Match[str]]:
    """Return the announcements and headings of a text.

    Only lines that have a word of one are searched: in so many languages it takes 0.4 microseconds a character.
    """
    found: list[re.Match[str]] = []
    start = 0
    for line in text.split("\n"):
        end, small = start + len(line), line.casefold().replace("\u0131", "i")
        if any(sign in small for sign in SIGNS):
            marks = _MARK.finditer(text, start, end + _LOOK_AHEAD)
            found += [mark for mark in marks if mark.start() <= end]
        start = end + 1
    last = _LAST_HEADING.search(text, max(0, text.rstrip().rfind("\n")))
    return [*found, *([last] if last and all(last.start() != mark.start() for mark in found) else [])]


def _read_boxed(text: str, begin: int) -> str:
    r"""Return the content of a `\boxed{…}`, with nested braces matched; empty if it does not end."""
    depth = 1
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[begin:place].strip()
    return ""


def _read_marked(text: str, mark: re.Match[str]) -> str:
    """Return what stands behind an announcement, without its markdown; empty if that is nothing or long."""
    rest = text[mark.end() :]
    lines = rest.split("\n")
    for number, line in enumerate(lines[:_MOST_LINES]):
        shown = _clean(line)
        if line.lstrip().startswith(("```", "~~~")):
            fenced = _FENCED.match("\n".join(lines[number:]).lstrip())
            return fenced[2].strip() if fenced else ""
        if not shown.strip(_DECORATION):
            continue
        if len(line) > _MOST_LINE:
            return ""
        behind = "\n".join(lines[number + 1 :]).strip()
        if (number or shown.endswith(":")) and behind and not _is_value(shown) and not _EXPLAINED.match(behind):
            return "\n".join(lines[number:]).strip()
        sentence = _cut_remark(cut_sentence(shown))
        is_in_prose = not number and mark.start() and text[mark.start() - 1] not in "\n*_#"
        return "" if is_in_prose and len(sentence.split()) > _MOST_WORDS_OF_SENTENCE else sentence
    return ""


def _cut_remark(sentence: str) -> str:
    """Return the value that a sentence begins with, without a remark behind it; another sentence as it is."""
    if sentence.endswith("}") and sentence.count("{") < sentence.count("}"):
        # It stood in a box.
        sentence = sentence.rstrip("}")
    found = _REMARK.search(sentence)
    return sentence[: found.start()] if found and find_value(sentence[: found.start()]) else sentence


def _clean(line: str) -> str:
    """Return a line without the markdown around it."""
    shown = _ENDED_EMPHASIS.sub("", line.lstrip(" \t:=>\uff1a"))
    shown = _EMPHASIS.sub(r"\2", shown.lstrip("#").strip())
    if shown.count("**") == 1:
        shown = shown.removesuffix("**")
    for mark in "*`":
        if shown.startswith(mark) and shown.endswith(mark) and mark not in shown[1:-1]:
            shown = shown[1:-1]
    return shown.strip()


def _is_value(line: str) -> bool:
    """Return whether a line by itself can be the answer, so that an explanation of it may follow."""
    return len(line) <= _MOST_VALUE and not _LIST_MARK.match(line) and not line.endswith((":", ","))


def cut_sentence(line: str) -> str:
    """Return the first sentence of a line, without its full stop; `Dr. No`, `J. K. Rowling` and `3.5` end none."""
    for end in _SENTENCE_END.finditer(line):
        head = line[: end.start()]
        word = head.rsplit(None, 1)[-1].casefold() if head.strip() else ""
        rest = line[end.end() :].split()
        is_short = len(rest) < _FEWEST_WORDS_BEHIND_A_CHOICE or _INITIAL.fullmatch(rest[0]) is not None
        is_initial = len(word) == 1 and word.isalpha() and (len(head) > 1 or is_short)
        if word and word.lstrip("(") not in ABBREVIATIONS and not is_initial:
            return head if end[0] in ".。" else line[: end.end()]
    is_abbreviated = line.rstrip(".").rsplit(None, 1)[-1:] and "." in line.rstrip(".").rsplit(None, 1)[-1]
    return line if line.endswith("..") or (is_abbreviated and not find_value(line)) else line.removesuffix(".")


def _read_conclusion(text: str) -> str:
    """Return what the last line of `text` concludes; empty if it could be read in two ways."""
    text = _POLITE_END.sub("", text)
    line = text.rpartition("\n")[2].strip()
    if len(line) > _MOST_LINE or _FENCE_OR_DATA.search(text):
        return ""
    later = [] if _CONCLUSION.match(line) else [*_LATER_CONCLUSION.finditer(line)]
    if later:
        line = line[later[-1].end() :]
    shown = _clean(line)
    is_conclusion = _CONCLUSION.match(line) is not None
    bold = _BOLD.findall(line)
    if len(bold) == 1 and not bold[0].endswith(":") and (is_conclusion or shown.rstrip(".") == bold[0].rstrip(".")):
        return str(bold[0])
    if line != text and find_value(shown):
        return shown
    if not is_conclusion:
        return ""
    line = read_latex(_INLINE_MATH.sub(r"\1", line))
    if has_two_unknowns(line):
        return ""
    numbers = {found[0].strip() for found in NUMBER.finditer(line.rpartition("=")[2])}
    number = numbers.pop() if len(numbers) == 1 else ""
    # "They were late, so only 12 came" concludes a story, and not a calculation that has the number before.
    return number if not later or number in text.rpartition("\n")[0] else ""

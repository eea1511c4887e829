from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

import pytest

from reasond_server.demo import DemoModel
from reasond_server.demo.mutations import find_mutations
from reasond_server.demo.repair_replies import read_attempt, write_repair
from reasond_server.llm.model import ChatRequest, Finished, Message, Role, Text

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

MOST_STEPS = 3000
NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
SYSTEM = "You are a senior developer who repairs code."

# Fifteen functions of a few lines with one mistake each, and below each what must hold.
TABLE = """
def clamp(value, low, high):
    if value < low:
        return low
    if value < high:
        return high
    return value
# [clamp(5, 0, 3), clamp(-1, 0, 3), clamp(2, 0, 3), clamp(3, 0, 3)] == [3, 0, 2, 3]

def count_down(n):
    out = []
    while n > 0:
        out.append(n)
        n -= 2
    return out
# count_down(4) == [4, 3, 2, 1]

def last_index(items, wanted):
    for place in range(len(items) - 1, 0, -1):
        if items[place] == wanted:
            return place
    return -1
# [last_index('abca', 'a'), last_index('abc', 'a'), last_index('abc', 'd')] == [3, 0, -1]

def pairs(items):
    found = []
    for i in range(len(items)):
        for j in range(i, len(items)):
            found.append((items[i], items[j]))
    return found
# pairs('abc') == [('a', 'b'), ('a', 'c'), ('b', 'c')]

def divisor(a, b):
    if b == 0:
        return a
    return divisor(a % b, b)
# [divisor(12, 18), divisor(7, 3)] == [6, 1]

def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 and year % 400 == 0)
# [is_leap(y) for y in (1900, 2000, 2023, 2024)] == [False, True, False, True]

def middle(values):
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half] + ordered[half + 1]) / 2
# [middle([3, 1, 2]), middle([4, 1, 3, 2])] == [2, 2.5]

def running(values):
    total = 0
    sums = []
    for value in values:
        total = value
        sums.append(total)
    return sums
# running([1, 2, 3]) == [1, 3, 6]

def all_even(values):
    for value in values:
        if value % 2:
            return False
        return True
# [all_even([2, 3]), all_even([2, 4]), all_even([1])] == [False, True, False]

def join_words(words, separator):
    text = ''
    for place, word in enumerate(words):
        if place:
            text += word
        text += word
    return text
# join_words(['a', 'b', 'c'], '-') == 'a-b-c'

def average(values):
    return sum(values) / len(values)
# [average([1, 2]), average([])] == [1.5, 0]

def search(items, wanted):
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle] < wanted:
            low = middle
        else:
            high = middle
    return low
# [search([1, 3, 5], w) for w in (0, 1, 4, 5, 9)] == [0, 0, 2, 2, 3]

def is_subset(part, whole):
    return any(one in whole for one in part)
# [is_subset('ab', 'abc'), is_subset('ad', 'abc')] == [True, False]

def to_digits(number, base):
    digits = ''
    while number > 0:
        number, rest = divmod(number, base)
        digits = digits + str(rest)
    return digits
# [to_digits(6, 2), to_digits(10, 3)] == ['110', '101']

def tally(words):
    counts = {}
    for word in words:
        counts[word] = counts[word] + 1
    return counts
# tally('aab') == {'a': 2, 'b': 1}
"""
BUGS = {
    code[4 : code.index("(")]: (f"{code}\n", holds)
    for code, _, holds in (block.rpartition("\n# ") for block in TABLE.strip().split("\n\n"))
}


def _prompt(text: str, attempt: int) -> list[Message]:
    """Return a prompt in the form of `reasond_server.repair.search.prompts`."""
    asked = f"{text}\n\nAttempt {attempt}"
    return [Message(role=Role.SYSTEM, content=SYSTEM), Message(role=Role.USER, content=asked)]


def _show(path: str, source: str) -> str:
    return f"File {path}:\n<material {NONCE}>\n{source}\n</material {NONCE}>\n\n"


def _observe(evidence: str) -> str:
    return f"What the checks say of the original code:\n<observation {NONCE}>\n{evidence}\n</observation {NONCE}>"


def _apply(source: str, reply: str) -> str:
    """Return `source` with the one edit of a reply; its anchor must be there once."""
    _, _, rest = reply.partition("<<<<<<< SEARCH\n")
    search, _, rest = rest.partition("\n=======\n")
    replace, _, _ = rest.partition("\n>>>>>>> REPLACE")
    assert source.count(search) == 1
    return source.replace(search, replace)


class _EndlessError(Exception):
    pass


def _is_right(source: str, condition: str) -> bool:
    """Return whether the condition holds after at most 3,000 lines: some edits make loops that do not end."""
    names: dict[str, object] = {}
    steps = 0

    def trace(_frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any]:
        nonlocal steps
        steps += 1
        if steps > MOST_STEPS:
            raise _EndlessError
        return trace

    exec(compile(source, "one.py", "exec"), names)  # noqa: S102 - the table above
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return bool(eval(condition, names))  # noqa: S307 - the table above
    except Exception:  # noqa: BLE001 - a mutant may raise anything
        return False
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("name", BUGS)
def test_the_right_edit_is_within_the_first_200(name: str) -> None:
    source, condition = BUGS[name]
    assert not _is_right(source, condition)
    evidence = f'Traceback (most recent call last):\n  File "test_one.py", line 7, in test_{name}\nAssertionError'
    text = _show("pkg/one.py", source) + _observe(evidence)
    changed = (_apply(source, write_repair(_prompt(text, one), one)) for one in range(1, 201))
    assert any(_is_right(one, condition) for one in changed)


def test_each_attempt_is_another_edit_that_parses_until_none_is_left() -> None:
    source, _ = BUGS["search"]
    text = _show("one.py", source)
    replies: list[str] = []
    while "<<<<<<<" in (reply := write_repair(_prompt(text, len(replies) + 1), len(replies) + 1)):
        replies.append(reply)
    changed = [_apply(source, one) for one in replies]
    assert len(set(changed)) == len(changed) > 100
    assert source not in changed
    for one in changed:
        ast.parse(one)
    assert reply.startswith(f"The demo model has no edit left: it knows {len(replies)} one-line edits")
    assert "needs a language model" in reply


def test_the_line_of_a_traceback_comes_first_then_its_function_then_what_that_calls() -> None:
    source = (
        "def far(a):\n    return a < 1\n\n\ndef helper(a):\n    return a < 2\n\n\n"
        "def near(a):\n    a = a > 3\n    return helper(a < 4)\n"
    )
    evidence = 'Traceback (most recent call last):\n  File "/srv/pkg/one.py", line 11, in near\nTypeError: no'
    text = _show("pkg/one.py", source) + _observe(evidence)
    replies = [write_repair(_prompt(text, one), one) for one in range(1, 60)]
    lines = [int(one.partition("in line ")[2].partition(" of")[0]) for one in replies if "in line" in one]
    firsts = list(dict.fromkeys(lines))
    assert firsts[0] == 11
    assert firsts.index(6) < firsts.index(2)


def test_tests_are_shown_and_never_edited() -> None:
    text = _show("tests/test_one.py", "assert 1 < 2\n") + _show("one.py", "LIMIT = 3\n")
    replies = [write_repair(_prompt(text, one), one) for one in range(1, 5)]
    assert all("one.py\n<<<<<<< SEARCH\nLIMIT = 3\n" in one for one in replies)
    assert not any("tests/test_one.py\n<<<<<<<" in one for one in replies)


def test_equal_lines_are_told_apart_by_their_neighbours() -> None:
    source = "def one(a):\n    return a < 1\n\n\ndef two(a):\n    return a < 1\n"
    text = _show("one.py", source)
    changed = {_apply(source, write_repair(_prompt(text, one), one)) for one in range(1, 25)}
    assert source.replace("def two(a):\n    return a < 1", "def two(a):\n    return a <= 1") in changed


def test_all_attempts_of_a_repair_count_in_one_list_whatever_became_of_the_others() -> None:
    source, _ = BUGS["search"]
    text = _show("one.py", source) + _observe("AssertionError in test_search")
    diff = "-    return low\n+    return high"
    previous = f"PreviousCandidate:\n<passage {NONCE}>\n{diff}\n</passage {NONCE}>\nCriticScore: 3/100\nFile one.py:"
    improved = f"{text}\n\n{previous}\n<material {NONCE}>\nOTHER = 1\n</material {NONCE}>"
    for attempt in (1, 40):
        assert write_repair(_prompt(improved, attempt), attempt) == write_repair(_prompt(text, attempt), attempt)


def test_a_source_with_marks_of_edits_gets_longer_ones() -> None:
    source = "LIMIT = 3  # =======\n"
    reply = write_repair(_prompt(_show("one.py", source), 1), 1)
    assert "\n<<<<<<<< SEARCH\n" in reply
    assert reply.endswith("\n>>>>>>>> REPLACE\n")


@pytest.mark.parametrize(
    ("system", "content", "attempt"),
    [
        (SYSTEM, "one\nAttempt 7", 7),
        (SYSTEM, "Attempt 12\n", 12),
        (SYSTEM, "Attempt 7\nand more", 0),
        (SYSTEM, "Attempt x", 0),
        ("You write plans.", "one\nAttempt 7", 0),
    ],
)
def test_the_form_of_edits_and_the_last_line_ask_for_a_repair(system: str, content: str, attempt: int) -> None:
    messages = [Message(role=Role.SYSTEM, content=system), Message(role=Role.USER, content=content)]
    assert read_attempt(messages) == attempt


CLASSES = "class A:\n    def f(self, x):\n        return x\n\n\nclass B:\n    def f(self, y):\n        return y\n"


@pytest.mark.parametrize(
    "source", ["def broken(:\n", "", "x = '\u2028'\ny = 'é' < 'f'\n", "def f(): return 1 < 2\r\n", CLASSES]
)
def test_sources_of_any_form_are_read(source: str) -> None:
    for one in find_mutations(source):
        changed = source.encode()[: one.start] + one.text.encode() + source.encode()[one.end :]
        ast.parse(changed)


async def test_the_model_answers_an_attempt_with_an_edit_and_says_what_it_is() -> None:
    model = DemoModel()
    source, _ = BUGS["divisor"]
    request = ChatRequest(messages=_prompt(_show("one.py", source), 1), max_tokens=1000)
    events = [event async for event in model.stream(request)]
    assert isinstance(events[-1], Finished)
    reply = "".join(event.text for event in events if isinstance(event, Text))
    assert reply == write_repair(request.messages, 1)
    assert "that fixed rules make" in reply
    assert model.name == "demo"
    assert "embedded demo model" in model.warnings[0]

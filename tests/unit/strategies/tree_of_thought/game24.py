"""The game of 24 as a task for search: a model of controlled accuracy that plays by the rules, and a referee.

The task is to combine four numbers by + - * / to 24. The model is a pure function of the request, a seed and the number
of earlier identical requests; it answers the prompts of chain_of_thought, self_consistency and tree_of_thought. Each
proposed move keeps 24 reachable with probability `skill`, if such a move exists; else it is drawn from all moves. Its
judgement of a thought is right with probability `insight`.
"""

from __future__ import annotations

import ast
import operator
import random
import re
from fractions import Fraction
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Final

from reasond_server.testing import FunctionModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.model import ChatRequest

TARGET: Final = 24
_OPERATIONS: Final[dict[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_AST: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_QUESTION: Final = re.compile(r"Make 24 of ([\d ]+)\.")
_LEFT: Final = re.compile(r"left: ([^\n<]+)")
_COUNT: Final = re.compile(r" in (\d+) different ways")
_NUMBERS: Final = 4

State = tuple[str, ...]


def question_of(numbers: Sequence[int]) -> str:
    """Return the question for four numbers."""
    return f"Make 24 of {' '.join(map(str, numbers))}. Use each number once, with + - * / and brackets."


def is_right(answer: str, numbers: Sequence[int]) -> bool:
    """Return whether `answer` makes 24 of exactly these numbers."""
    try:
        tree = ast.parse(answer.strip(), mode="eval").body
        used = sorted(
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is int
        )
        return used == sorted(numbers) and _value(tree) == TARGET
    except (SyntaxError, ValueError, ZeroDivisionError, TypeError):
        return False


def puzzles(count: int, *, seed: int) -> list[tuple[int, ...]]:
    """Return different solvable puzzles."""
    source, found = random.Random(seed), dict[tuple[int, ...], None]()  # noqa: S311 - a game, no secret
    while len(found) < count:
        numbers = tuple(sorted(source.randint(1, 13) for _ in range(_NUMBERS)))
        if _is_solvable(tuple(Fraction(number) for number in numbers)):
            found[numbers] = None
    return list(found)


class Player:
    """Plays the game; strategies call `model`."""

    def __init__(self, *, seed: int, skill: float, insight: float, context_window: int | None = None) -> None:
        self._seed = seed
        self._skill = skill
        self._insight = insight
        self._seen: dict[str, int] = {}
        self.model = FunctionModel(self._reply, name="player of 24", context_window=context_window)

    def _reply(self, request: ChatRequest) -> str:
        content = re.sub(r" [a-z]{28}", "", request.messages[-1].content)
        place = self._seen[content] = self._seen.get(content, 0) + 1
        source = random.Random(f"{self._seed}:{place}:{content}")  # noqa: S311 - a game, no secret
        state = _state(content)
        if "<passage number=" in content:
            return self._judge(content, source)
        if proposing := _COUNT.search(content):
            moves = self._moves(state, int(proposing[1]), source)
            return "\n".join(f"Thought {number}: {_line(move)}" for number, move in enumerate(moves, start=1))
        if "Once you get to the answer" in content or "No step can follow" in content:
            return _line(self._moves(state, 1, source)[0])
        lines = [_line(state)] if len(state) == 1 else []
        while len(state) > 1:
            state = self._moves(state, 1, source)[0]
            lines.append(_line(state))
        return "\n".join(lines)

    def _moves(self, state: State, count: int, source: random.Random) -> list[State]:
        """Return up to `count` different moves."""
        ahead = _all_moves(state)
        chosen: list[State] = []
        while len(chosen) < min(count, len(ahead)):
            good = [move for move in ahead if move not in chosen and _is_open(move)]
            rest = [move for move in ahead if move not in chosen]
            chosen.append(source.choice(good if good and source.random() < self._skill else rest))
        return chosen

    def _judge(self, content: str, source: random.Random) -> str:
        shown = content.split("<passage number=")[1:]
        points = []
        for one in shown:
            is_good = _is_open(_state(one))
            is_said = is_good if source.random() < self._insight else not is_good
            points.append(source.choice((8, 9, 10) if is_said else (1, 2, 3)))
        if len(points) == 1:
            return f"<answer>{points[0]}</answer>"
        return f"<answer>{', '.join(f'{number}: {each}' for number, each in enumerate(points, start=1))}</answer>"


def _line(state: State) -> str:
    """Return a move as text, with the answer if only one number is left."""
    done = f" <answer>{state[0]}</answer>" if len(state) == 1 else ""
    return f"Go on with left: {' | '.join(state)}{done}"


def _state(content: str) -> State:
    """Return the remaining numbers: those of the last thought, or those of the question."""
    lines = _LEFT.findall(content)
    if lines:
        return tuple(part.strip() for part in lines[-1].split("|"))
    found = _QUESTION.search(content)
    return tuple(found[1].split()) if found else ("0",)


def _all_moves(state: State) -> list[State]:
    moves = []
    for one, other in permutations(range(len(state)), 2):
        rest = tuple(part for place, part in enumerate(state) if place not in {one, other})
        for sign in _OPERATIONS:
            is_double = sign in "+*" and one > other
            if not is_double and not (sign == "/" and _evaluate(state[other]) == 0):
                moves.append((f"({state[one]}{sign}{state[other]})", *rest))
    return moves


def _is_open(state: State) -> bool:
    return _is_solvable(tuple(sorted(_evaluate(part) for part in state)))


@cache
def _evaluate(text: str) -> Fraction:
    return _value(ast.parse(text, mode="eval").body)


@cache
def _is_solvable(values: tuple[Fraction, ...]) -> bool:
    """Return whether the remaining numbers can make 24."""
    if len(values) == 1:
        return values[0] == TARGET
    for one, other in permutations(range(len(values)), 2):
        rest = [value for place, value in enumerate(values) if place not in {one, other}]
        for sign, operation in _OPERATIONS.items():
            if sign == "/" and values[other] == 0:
                continue
            if _is_solvable(tuple(sorted([operation(values[one], values[other]), *rest]))):
                return True
    return False


def _value(tree: ast.expr) -> Fraction:
    """Return the value of an expression of whole numbers.

    Raises:
      ValueError: it contains anything else.
      ZeroDivisionError: it divides by zero.
    """
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return Fraction(tree.value)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _AST:
        return _OPERATIONS[_AST[type(tree.op)]](_value(tree.left), _value(tree.right))
    raise ValueError("no expression of whole numbers")

"""Measure what a call to a model costs in processor time, side by side with the openai package's `create()`.

Prints a table and writes results/adapter.json beside this file. Every round makes every kind of call with every client,
so that other load on the machine affects all of them. The figure is the median over the rounds of the ratio within a
round. The upstream is another process, on a second processor if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.clients import (
    bare_aiohttp,
    created_by_default,
    created_on_aiohttp,
    history,
    our_adapter,
    posted_on_aiohttp,
    went_on,
)
from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from benchmarks.upstream import running_upstream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.clients import Client, Conversation

RESULTS = Path(__file__).resolve().parent / "results" / "adapter.json"
PACKAGES = ("reasond-server", "openai", "aiohttp", "httpx2")
ROUNDS = 5
CHUNKS = 100
ANSWER_BYTES = 2048
CLIENTS = {
    "openai create()": created_by_default,
    "openai create(), aiohttp": created_on_aiohttp,
    "openai post(), aiohttp, least reader": posted_on_aiohttp,
    "reasond": our_adapter,
    "aiohttp alone": bare_aiohttp,
}
REFERENCE, OURS = "openai create()", "reasond"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of call: the size of the request, the form of the answer, and the number of calls in a round.

    If `goes_on`, the previous call already sent all of `messages` but the last two; else the call sent none of them.
    """

    name: str
    model: str
    messages: int
    is_streamed: bool
    calls: int
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The processor time of one client for one kind of call: medians over the rounds; `ratio` is to `create()`."""

    what: str
    client: str
    microseconds: float
    ratio: float
    lowest_ratio: float
    highest_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A limit of the ratio of our client."""

    what: str
    ratio: float
    goal: float

    @property
    def is_met(self) -> bool:
        """Whether the ratio is within the limit."""
        return self.ratio <= self.goal


SHORT, LONG, UNSENT = "call, 2 messages", "call, 100 messages", "call, 100 messages never sent before"
STREAM = "100-chunk stream"
APART, FIRST = "100-chunk stream, one write per chunk", "1-chunk stream"
PER_CHUNK, PER_CHUNK_APART = "chunk", "chunk, one write per chunk"
MANY = f"fake?chunks={CHUNKS}&bytes={ANSWER_BYTES}"
CASES = (
    Case(name=SHORT, model=f"fake?bytes={ANSWER_BYTES}", messages=2, is_streamed=False, calls=100),
    Case(name=LONG, model=f"fake?bytes={ANSWER_BYTES}", messages=100, is_streamed=False, calls=100, goes_on=True),
    Case(name=UNSENT, model=f"fake?bytes={ANSWER_BYTES}", messages=100, is_streamed=False, calls=100),
    Case(name=FIRST, model=f"fake?bytes={ANSWER_BYTES}", messages=2, is_streamed=True, calls=100),
    Case(name=STREAM, model=MANY, messages=2, is_streamed=True, calls=25),
    Case(name=APART, model=f"{MANY}&apart=1", messages=2, is_streamed=True, calls=25),
)
HISTORY_GOAL = 1.2
GOALS = {PER_CHUNK: 0.10, PER_CHUNK_APART: 0.10, SHORT: 0.6, LONG: 0.1}
MEANINGS = {
    SHORT: "an answer of 2 KB after 2 messages: whole, but from reasond, which always streams, as one chunk",
    LONG: "the same after 100 messages as an agent sends them: 98 that it has sent before, and 2 new ones",
    UNSENT: "the same after 100 messages that nobody has sent before",
    FIRST: "the same answer after 2 messages as a stream of one chunk, from every client",
    STREAM: "the same answer as a stream of 100 chunks that the upstream writes at once",
    APART: "the same, every chunk written to the socket by itself",
    PER_CHUNK: "a hundredth of what a 100-chunk stream takes more than a 1-chunk stream",
    PER_CHUNK_APART: "the same, every chunk written to the socket by itself",
}

Round = dict[tuple[str, str], float]


def conversations_of(case: Case) -> list[Conversation]:
    """Return the conversation of each call, and one more for the warm-up call at the front."""
    before = history(case.messages - 2, size=64)
    return [went_on(before) if case.goes_on else history(case.messages) for _ in range(case.calls + 1)]


async def microseconds_of(client: Client, case: Case, conversations: Sequence[Conversation]) -> float:
    """Return the processor time of one call in microseconds, the mean over all but the first, which warms up."""
    for number, said in enumerate(conversations):
        if number == 1:
            begun = time.process_time_ns()
        characters = await client.call(case.model, said, is_streamed=case.is_streamed)
        if characters != ANSWER_BYTES:
            raise SystemExit(f"{type(client).__name__}: {case.name}: an answer of {characters} characters")
    return (time.process_time_ns() - begun) / case.calls / 1000


async def one_round(clients: Mapping[str, Client], order: Sequence[str]) -> Round:
    """Make every kind of call with every client, with the clients in the given order."""
    figures: Round = {}
    for case in CASES:
        conversations = conversations_of(case)
        for name in order:
            gc.collect()
            figures[case.name, name] = await microseconds_of(clients[name], case, conversations)
    for name in order:
        figures[PER_CHUNK, name] = (figures[STREAM, name] - figures[FIRST, name]) / (CHUNKS - 1)
        figures[PER_CHUNK_APART, name] = (figures[APART, name] - figures[FIRST, name]) / (CHUNKS - 1)
    return figures


async def rounds_of(base_url: str, rounds: int) -> list[Round]:
    """Return the figures of `rounds` rounds after a warm-up round; every other round is in reverse order."""
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(opened(base_url)) for name, opened in CLIENTS.items()}
        names = list(clients)
        await one_round(clients, names)
        return [await one_round(clients, names[:: 1 if number % 2 else -1]) for number in range(rounds)]


def rows_of(rounds: Sequence[Round]) -> list[Row]:
    """Return the medians of all rounds."""
    rows = []
    for what in MEANINGS:
        for client in CLIENTS:
            ratios = [one[what, client] / one[what, REFERENCE] for one in rounds]
            rows.append(
                Row(
                    what=what,
                    client=client,
                    microseconds=round(statistics.median(one[what, client] for one in rounds), 2),
                    ratio=round(statistics.median(ratios), 4),
                    lowest_ratio=round(min(ratios), 4),
                    highest_ratio=round(max(ratios), 4),
                )
            )
    return rows


def goals_of(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals of our client and whether they are met."""
    ours = {row.what: row.ratio for row in rows if row.client == OURS}
    return [Goal(what=what, ratio=ours[what], goal=goal) for what, goal in GOALS.items()]


def histories_of(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return for each client the cost of 100 messages over that of 2: the median of the ratios within a round."""
    return [
        {"client": name, "ratio": over_short(rounds, LONG, name), "unsent_ratio": over_short(rounds, UNSENT, name)}
        for name in CLIENTS
    ]


def over_short(rounds: Sequence[Round], what: str, client: str) -> float:
    """Return the processor time of a call as a multiple of that of a call with 2 messages."""
    return round(statistics.median(one[what, client] / one[SHORT, client] for one in rounds), 3)


def history_goal_of(histories: Sequence[Mapping[str, Any]]) -> Goal:
    """Return the goal of our client for a conversation that continues."""
    ours: float = next(one["ratio"] for one in histories if one["client"] == OURS)
    return Goal(what="100 messages over 2", ratio=ours, goal=HISTORY_GOAL)


def print_tables(rows: Sequence[Row], goals: Sequence[Goal]) -> None:
    """Print the figures as tables."""
    for what, meaning in MEANINGS.items():
        print(f"{what}: {meaning}")
        for row in rows:
            if row.what == what:
                extent = f"({row.lowest_ratio:.3f} to {row.highest_ratio:.3f})"
                print(f"    {row.client:<38} {row.microseconds:>9.1f} us   {row.ratio:.3f} of create() {extent}")
    for goal in goals:
        print(f"goal: {goal.what} <= {goal.goal:g}: {goal.ratio:.3f}, {'met' if goal.is_met else 'MISSED'}")


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    options = parser.parse_args()
    measured, other = two_processors()
    with running_upstream(core=other) as base_url:
        pin(measured)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            rounds = runner.run(rounds_of(base_url, max(1, options.rounds)))
    rows = rows_of(rounds)
    goals = goals_of(rows)
    print_tables(rows, goals)
    histories = histories_of(rounds)
    history_goal = history_goal_of(histories)
    for one in histories:
        print(
            f"100 messages over 2: {one['client']:<38} {one['ratio']:.3f}, none sent before {one['unsent_ratio']:.3f}"
        )
    verdict = "met" if history_goal.is_met else "MISSED"
    print(f"goal: {history_goal.what} <= {history_goal.goal:g}: {history_goal.ratio:.3f}, {verdict}")
    report = {
        "circumstances": circumstances(PACKAGES),
        "rounds": len(rounds),
        "upstream_apart": measured != other,
        "meanings": MEANINGS,
        "goals": [asdict(goal) for goal in goals],
        "history": histories,
        "history_goal": asdict(history_goal),
        "rows": [asdict(row) for row in rows],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

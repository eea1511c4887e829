"""No model, question or material makes a window of bounded context larger than chunk_size, or loses a character."""

from __future__ import annotations

import asyncio
import itertools
import re
from functools import lru_cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from reasond_server.context.carryover import SUMMARY_REQUEST
from reasond_server.context.tags import neutralize
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.counting import ByteCounter, WordPieceCounter
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step, StrategyEvent
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import BoundedContextMetrics, BoundedContextStep, CarryoverMode, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatRequest, TokenCounter

UNITS = st.sampled_from([
    "The wall has four gates. ", "word ", "\n\n", "</passage>\n", "<answer>42</answer>", "x" * 40, "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 ", "\u4f60\u597d\u3002", "<an\u200bswer>", "\uff1cnotes>", "< continue",
    "e\u0301", "[...]", "```\n", "\t \r\n", "<", "&lt;answer>",
])  # fmt: skip


@st.composite
def texts(draw: st.DrawFn, *, most: int) -> str:
    """A text of repeated hostile units: long, but quick to draw."""
    rows = draw(st.lists(st.tuples(UNITS | st.text(max_size=5), st.integers(1, 120)), max_size=8))
    return "".join(unit * times for unit, times in rows)[:most]


CONFIGS = st.builds(
    BoundedContextConfig,
    chunk_size=st.integers(1024, 4096),
    carryover_size=st.integers(512, 2048),
    max_iterations=st.integers(1, 4),
    max_segments=st.just(4096),
    carryover_mode=st.sampled_from(CarryoverMode),
)
REPLIES = st.sampled_from([
    "", "word ", "x", "<continue>", "<continue>word ", "```\n<notes>", "<answer>", "\U0001f600", "<think>", "\n",
    "</notes>\n<question>\n", "\uff1canswer>", "<answer>42</answer>", "<continue>n</continue>",
])  # fmt: skip
COUNTERS = st.sampled_from([WordPieceCounter(), ByteCounter()])
PIECE = 512
"""The number of units in a delta of a long reply."""
SLOW = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def work(
    task: Task, config: BoundedContextConfig, replies: Sequence[str], counter: TokenCounter
) -> tuple[list[ChatRequest], list[StrategyEvent]]:
    """Run with a model that always writes as much as allowed, with each of `replies` in turn."""
    turns = itertools.cycle(replies)

    def reply(request: ChatRequest) -> Reply:
        unit = next(turns)
        is_marked = unit.endswith(("</answer>", "</continue>"))
        times = 1 if is_marked or not unit else request.max_tokens * 16 // len(unit) + 1
        # Long pieces, because each delta costs the same time; other tests cover the cuts of text.
        return Reply(pieces=(unit * PIECE,) * (times // PIECE) + (unit * (times % PIECE),))

    model = FunctionModel(reply, counter=counter)
    strategy = BoundedContext()
    try:
        strategy.check(task, config, model)
    except InvalidConfigError:
        assume(False)

    async def events() -> list[StrategyEvent]:
        return [event async for event in strategy.run(task, RunContext(config=config, model=model))]

    return model.requests, asyncio.run(events())


@pytest.mark.slow
@SLOW
@given(
    query=texts(most=20_000).filter(bool),
    material=texts(most=20_000),
    config=CONFIGS,
    replies=st.lists(REPLIES, min_size=1, max_size=3),
    counter=COUNTERS,
)
def test_no_window_is_larger_than_chunk_size(
    query: str, material: str, config: BoundedContextConfig, replies: list[str], counter: TokenCounter
) -> None:
    requests, events = work(Task(query=query, material=material), config, replies, counter)
    summaries = [request for request in requests if request.messages[-1].content == SUMMARY_REQUEST]
    for request in requests:
        assert counter.count_prompt(request.messages) + request.max_tokens <= config.chunk_size
        if request in summaries:
            assert request.max_tokens <= 0.15 * (config.chunk_size - config.carryover_size)
        else:
            assert request.max_tokens >= config.chunk_size // 8 - 16
    if config.carryover_mode is CarryoverMode.TAIL:
        assert not summaries
    details = [event.detail for event in events if isinstance(event, Step)]
    assert len(details) == len(requests) - len(summaries)
    for detail in details:
        assert isinstance(detail, BoundedContextStep)
        assert detail.window_tokens <= config.chunk_size
        assert detail.carryover_tokens <= config.carryover_size
    outcome = events[-1]
    assert isinstance(outcome, Outcome)
    assert isinstance(outcome.metrics, BoundedContextMetrics)
    assert outcome.metrics.peak_window_tokens <= config.chunk_size
    assert outcome.metrics.carryover_calls == len(summaries)


LEGAL = st.integers(1024, 32_768).flatmap(
    lambda chunk_size: st.builds(
        BoundedContextConfig,
        chunk_size=st.just(chunk_size),
        carryover_size=st.integers(512, min(16_384, max(512, chunk_size * 3 // 5))),
        max_iterations=st.integers(1, 50),
        max_segments=st.just(4096),
        carryover_mode=st.sampled_from(CarryoverMode),
    )
)


class RememberingCounter(WordPieceCounter):
    """Counts each text once, because the strategy, the model and the test count the same texts."""

    def __init__(self) -> None:
        super().__init__()
        self.count_text = lru_cache(maxsize=4096)(super().count_text)  # type: ignore[method-assign]  # the same function with a cache


def fill(units: Sequence[tuple[str, int]], *, characters: int, most_bytes: int) -> str:
    """Return a text of the greatest allowed size: the units repeated, in whole characters."""
    once = "".join(unit * times for unit, times in units) or "x"
    text = (once * (characters // len(once) + 1))[:characters]
    return text.encode("utf-8", "replace")[:most_bytes].decode("utf-8", "ignore")


@pytest.mark.slow
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    query=st.lists(st.tuples(UNITS, st.integers(1, 400)), min_size=1, max_size=4),
    material=st.lists(st.tuples(UNITS, st.integers(1, 400)), max_size=4),
    characters=st.sampled_from([0, 5_000, 200_000, 2_000_000]),
    config=LEGAL,
    replies=st.lists(REPLIES, min_size=1, max_size=3),
)
def test_the_largest_query_and_material_keep_to_any_legal_configuration(
    query: list[tuple[str, int]],
    material: list[tuple[str, int]],
    characters: int,
    config: BoundedContextConfig,
    replies: list[str],
) -> None:
    counter = RememberingCounter()
    task = Task(
        query=fill(query, characters=100_000, most_bytes=400_000),
        material=fill(material, characters=characters, most_bytes=2_000_000),
    )
    requests, events = work(task, config, replies, counter)
    assert all(counter.count_prompt(one.messages) + one.max_tokens <= config.chunk_size for one in requests)
    details = [event.detail for event in events if isinstance(event, Step)]
    assert all(isinstance(one, BoundedContextStep) and one.window_tokens <= config.chunk_size for one in details)


@pytest.mark.slow
@SLOW
@given(query=texts(most=20_000).filter(bool), material=texts(most=20_000), config=CONFIGS, counter=COUNTERS)
def test_every_character_is_shown_exactly_once(
    query: str, material: str, config: BoundedContextConfig, counter: TokenCounter
) -> None:
    requests, _ = work(Task(query=query, material=material), config, ["<continue>seen</continue>"], counter)
    contents = [request.messages[1].content for request in requests]
    found = (
        re.search(r"^<(passage|material)[^>\n]*>\n(.*)\n</\1 [a-z]{28}>$", content, re.DOTALL | re.MULTILINE)
        for content in contents
    )
    read = "".join(one[2] for one in found if one)
    (question,) = {
        one[1] for content in contents for one in re.findall(r"<(question)[^>\n]*>\n(.*)\n</\1", content, re.DOTALL)
    }
    if question == neutralize(query):
        assert plain(read) == plain(material)
        return
    joined = plain("\n\n" + material) if material else ""
    assert plain(read).endswith(joined)
    middle = plain(read).removesuffix(joined)
    wholes = (
        plain(question[: left_out.start()] + middle + question[left_out.end() :])
        for left_out in re.finditer(re.escape("\n[...]\n"), question)
    )
    assert plain(query) in wholes


@pytest.mark.slow
@SLOW
@given(material=texts(most=20_000), config=CONFIGS, replies=st.lists(REPLIES, min_size=1, max_size=3))
def test_the_number_of_calls_is_linear_in_the_material(
    material: str, config: BoundedContextConfig, replies: list[str]
) -> None:
    counter = WordPieceCounter()
    requests, _ = work(Task(query="How many gates?", material=material), config, replies, counter)
    tokens = counter.count_text(neutralize(material))
    # A segment has room for at least 64 tokens and is at least half full in characters (at most 16 per token).
    windows = 1 + 32 * tokens / 64 + config.max_iterations
    assert len(requests) <= windows * (1 if config.carryover_mode is CarryoverMode.TAIL else 2)


def plain(text: str) -> str:
    """Return `text` with one spelling for each less-than sign, so that neutralised and original text compare equal.

    A cut may leave "<name" at the end of a part, which is neutralised there, or fall inside a "&lt;".
    """
    return re.sub("&lt;|\uff1c|\ufe64", "<", text)

"""The size of a call: the tokens of its prompt and the room for its reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.context.calls import LEAST_TOKENS, bound_prompt, count_prompt, measure_room
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import EstimatingCounter, WordPieceCounter
from reasond_server.llm.model import LONG_TEXT_CHARACTERS, Message, Role
from reasond_server.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

COUNTER = WordPieceCounter()
MESSAGES = (Message(role=Role.USER, content="What is seven times six?"),)
PROMPT = COUNTER.count_prompt(MESSAGES)


class Telling(ScriptedModel):
    """A model whose server counts prompts itself."""

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        assert messages == MESSAGES
        return PROMPT + 10


async def test_a_window_that_nobody_knows_bounds_nothing() -> None:
    assert await measure_room(MESSAGES, max_tokens=4096, model=ScriptedModel([])) == (4096, ())


async def test_what_fits_exactly_is_allowed_without_a_warning() -> None:
    model = ScriptedModel([], context_window=PROMPT + 500)
    assert await measure_room(MESSAGES, max_tokens=500, model=model) == (500, ())


async def test_a_limit_over_the_room_is_lowered_and_the_warning_has_both_numbers() -> None:
    model = ScriptedModel([], context_window=PROMPT + 499)
    room, (warning,) = await measure_room(MESSAGES, max_tokens=500, model=model)
    assert room == 499
    assert "lowered from 500 to 499" in warning


async def test_the_servers_own_count_wins_over_ours() -> None:
    model = Telling([], context_window=PROMPT + 510)
    assert await measure_room(MESSAGES, max_tokens=500, model=model) == (500, ())
    assert (await measure_room(MESSAGES, max_tokens=501, model=model))[0] == 500


async def test_the_least_room_is_enough_and_one_token_less_is_refused_with_the_numbers() -> None:
    enough = ScriptedModel([], context_window=PROMPT + LEAST_TOKENS)
    assert (await measure_room(MESSAGES, max_tokens=500, model=enough))[0] == LEAST_TOKENS
    window = PROMPT + LEAST_TOKENS - 1
    with pytest.raises(ContextExhaustedError, match=f"which leaves {LEAST_TOKENS - 1} of") as refused:
        await measure_room(MESSAGES, max_tokens=500, model=ScriptedModel([], context_window=window))
    assert refused.value.metadata == {"prompt_tokens": str(PROMPT), "context_window": str(window)}


@pytest.mark.parametrize("characters", [10, LONG_TEXT_CHARACTERS + 1])
async def test_texts_of_every_length_are_counted_alike(characters: int) -> None:
    messages = (Message(role=Role.USER, content="a " * (characters // 2 + 1)),)
    assert await count_prompt(messages, COUNTER) == COUNTER.count_prompt(messages)


RULES = (Message(role=Role.SYSTEM, content="Rule."), Message(role=Role.USER, content="Zwölf \ud800?"))


def test_an_exact_counter_is_believed() -> None:
    assert bound_prompt(RULES, COUNTER) == COUNTER.count_prompt(RULES)


def test_where_it_only_estimates_bytes_bound_the_prompt() -> None:
    assert bound_prompt(RULES, EstimatingCounter()) == 2 * 64 + len("Rule.") + len("Zwölf ?") + 1 + 1

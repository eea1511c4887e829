"""How much a model may write after a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.context.room import LEAST_TOKENS, own_count, writing_room
from reasond_server.errors import ContextExhaustedError
from reasond_server.llm.counting.word_pieces import WordPieceCounter
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
    assert await writing_room(MESSAGES, max_tokens=4096, model=ScriptedModel([])) == (4096, ())


async def test_what_fits_exactly_is_allowed_without_a_warning() -> None:
    model = ScriptedModel([], context_window=PROMPT + 500)
    assert await writing_room(MESSAGES, max_tokens=500, model=model) == (500, ())


async def test_a_limit_over_the_room_is_lowered_and_the_warning_has_both_numbers() -> None:
    model = ScriptedModel([], context_window=PROMPT + 499)
    room, (warning,) = await writing_room(MESSAGES, max_tokens=500, model=model)
    assert room == 499
    assert "lowered from 500 to 499" in warning


async def test_the_servers_own_count_wins_over_ours() -> None:
    model = Telling([], context_window=PROMPT + 510)
    assert await writing_room(MESSAGES, max_tokens=500, model=model) == (500, ())
    assert (await writing_room(MESSAGES, max_tokens=501, model=model))[0] == 500


async def test_the_least_room_is_enough_and_one_token_less_is_refused_with_the_numbers() -> None:
    enough = ScriptedModel([], context_window=PROMPT + LEAST_TOKENS)
    assert (await writing_room(MESSAGES, max_tokens=500, model=enough))[0] == LEAST_TOKENS
    window = PROMPT + LEAST_TOKENS - 1
    with pytest.raises(ContextExhaustedError, match=f"which leaves {LEAST_TOKENS - 1} of") as refused:
        await writing_room(MESSAGES, max_tokens=500, model=ScriptedModel([], context_window=window))
    assert refused.value.metadata == {"prompt_tokens": str(PROMPT), "context_window": str(window)}


@pytest.mark.parametrize("characters", [10, LONG_TEXT_CHARACTERS + 1])
async def test_texts_of_every_length_are_counted_alike(characters: int) -> None:
    messages = (Message(role=Role.USER, content="a " * (characters // 2 + 1)),)
    assert await own_count(messages, COUNTER) == COUNTER.count_prompt(messages)

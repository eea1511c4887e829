"""Windows that fit by the server's own count, where it tells one, before they are sent.

A plan is made with the model's counter. Where the server counts more than that, so that less than half of what a
call keeps for writing would be left, what has not been read yet is planned anew with a counter stretched by what was
found: passages get shorter and more, and nothing is left out. The question may be clipped, its middle being read then;
notes keep to carryover_size, which by the same measure holds less of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reasond_server.context.windows import plan_windows
from reasond_server.errors import ContextExhaustedError, InvalidConfigError
from reasond_server.llm.model import LONG_TEXT_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.context.windows import Window, WindowPlan
    from reasond_server.llm.model import ChatModel, Message, TokenCounter

_UNIT = 1000
_MOST_ATTEMPTS = 5


class StretchedCounter:
    """Counts `thousandths`/1000 times what another counter counts; its estimates are no longer exact."""

    def __init__(self, counter: TokenCounter, *, thousandths: int) -> None:
        self._counter = counter
        self._thousandths = thousandths

    @property
    def is_exact(self) -> bool:
        """Whether the counts are the model's own: they are not."""
        return False

    def count_text(self, text: str) -> int:
        """Return the stretched count of `text`."""
        return self._stretched(self._counter.count_text(text))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the stretched count of a prompt."""
        return self._stretched(self._counter.count_prompt(messages))

    def head(self, text: str, tokens: int) -> str:
        """Return the longest beginning of `text` that has at most `tokens` stretched tokens."""
        return self._counter.head(text, tokens * _UNIT // self._thousandths)

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest end of `text` that has at most `tokens` stretched tokens."""
        return self._counter.tail(text, tokens * _UNIT // self._thousandths)

    def _stretched(self, tokens: int) -> int:
        return -(-tokens * self._thousandths // _UNIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A call to be made: what it is sent and may write. `plan` and `counter` are those that hold from here on."""

    window: Window
    plan: WindowPlan
    counter: TokenCounter
    messages: Sequence[Message]
    max_tokens: int
    is_exact: bool


async def fitted_windows(
    plan: WindowPlan, *, model: ChatModel, notes: Callable[[TokenCounter], str], must_end: Callable[[], bool]
) -> AsyncGenerator[Fitted, None]:
    """Yield the calls of `plan` in order.

    When a call is made, `notes` returns the carryover within carryover_size by the counter that it is given, and
    `must_end` whether a window that reasons is to be the last.

    Raises:
        ContextExhaustedError: a prompt leaves no room to write in, however little of the material it shows.
    """
    counter, stretch, attempts, steps = model.counter, _UNIT, 0, 0
    windows = plan.windows()
    while (window := next(windows, None)) is not None:
        window = replace(window, is_last=window.is_last or (window.reading is None and must_end()))
        messages = plan.prompt(window, notes=notes(counter))
        told = await model.count_exactly(messages)
        counted = model.counter.count_prompt(messages)
        tokens = counted if told is None else told
        room, least = plan.limits.chunk_size - tokens, max(1, plan.limits.writing_tokens // 2)
        if room >= least:
            held = 0 if window.is_last else min(plan.reserve_tokens, room - least)
            is_exact = told is not None or model.counter.is_exact
            yield Fitted(
                window=window, plan=plan, counter=counter, messages=messages, max_tokens=room - held, is_exact=is_exact
            )
            attempts, steps = 0, steps + (window.reading is None)
            continue
        attempts += 1
        if attempts > _MOST_ATTEMPTS:
            raise _no_room(tokens, plan)
        found = -(-tokens * _UNIT // max(1, counted))
        # The same stretch again would give the same plan; only a changed calibration is worth that.
        stretch = max(found, stretch * 11 // 10) if attempts > 1 else max(found, stretch)
        counter = StretchedCounter(model.counter, thousandths=stretch)
        plan = await _replanned(plan, window, counter=counter, steps=steps, tokens=tokens)
        steps, windows = 0, plan.windows()


async def _replanned(plan: WindowPlan, window: Window, *, counter: TokenCounter, steps: int, tokens: int) -> WindowPlan:
    """Return a plan for what `window` would have shown and for everything after it."""
    is_reading, read = window.reading is not None, 0
    unread = plan.material if window.shows_material else ""
    if window.reading is not None:
        read = window.reading.segment - 1
        unread = "".join(plan.segments[read - plan.segments_before :])
    limits = replace(plan.limits, max_iterations=plan.limits.max_iterations - steps)

    def plan_again() -> WindowPlan:
        return plan_windows(
            query=plan.question,
            material=unread,
            limits=limits,
            counter=counter,
            nonce=plan.nonce,
            segments_before=read,
            is_reading=is_reading,
        )

    try:
        made = await asyncio.to_thread(plan_again) if len(unread) > LONG_TEXT_CHARACTERS else plan_again()
    except InvalidConfigError as error:
        raise _no_room(tokens, plan, error) from error
    return replace(made, is_question_clipped=plan.is_question_clipped or made.is_question_clipped)


def _no_room(tokens: int, plan: WindowPlan, error: InvalidConfigError | None = None) -> ContextExhaustedError:
    size = plan.limits.chunk_size
    details = [f"{one.field} {one.description}" for one in error.violations] if error is not None else []
    return ContextExhaustedError(
        f"a prompt of {tokens} tokens leaves {max(0, size - tokens)} of chunk_size {size} to write in, and shorter "
        "passages do not help",
        remedy="; ".join(["Raise chunk_size or lower carryover_size", *details]) + ".",
        metadata={"prompt_tokens": str(tokens), "chunk_size": str(size)},
    )

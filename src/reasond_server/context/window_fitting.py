"""Fits the windows of a plan into chunk_size by the count of the server, and plans again where a server counts more.

Before a window is sent, the server counts its prompt, if it can. The first time its count is higher, it counts the
frame too. If that is the first window, and C = chunk_size is too small for this frame, the run is refused before its
first call. If a count leaves less than half of the reserve, the unread text is planned again, with the server's count
of the frame and a counter that is stretched by what the texts of this window take: there are more and shorter segments.
The question may then be shortened, and its middle read as material. Notes fit carryover_size by the stretched counter,
so they have less text.

A run that has begun is not refused, because its calls are paid: an estimate may grow with every report of usage. If the
new plan needs more than max_segments, the text after these segments is left out. If C is too small for a new plan, the
next window is the last one, and shows only the question and the notes. `WindowPlan.shortfall` says so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from reasond_server.context.calls import count_prompt, run_by_size
from reasond_server.context.window_plan import (
    UNREAD,
    Window,
    WindowPlan,
    check_frame,
    describe_violations,
    find_frame,
    plan_windows,
)
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    from reasond_server.errors.base import ReasondError
    from reasond_server.llm.model import ChatModel, Message, TokenCounter

_ENDED_EARLY = "The reasoning was ended early:"
_UNIT = 1000
_MOST_ATTEMPTS = 5


class StretchedCounter:
    """Multiplies the counts of another counter by `thousandths`/1000; the results are not exact."""

    def __init__(self, counter: TokenCounter, *, thousandths: int) -> None:
        self._counter = counter
        self._thousandths = thousandths

    @property
    def is_exact(self) -> bool:
        """Always False: the counts are not those of the model."""
        return False

    def count_text(self, text: str) -> int:
        """Return the stretched count of `text`."""
        return self._stretch(self._counter.count_text(text))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the stretched count of a prompt."""
        return self._stretch(self._counter.count_prompt(messages))

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` with at most `tokens` stretched tokens."""
        return self._counter.head(text, tokens * _UNIT // self._thousandths)

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` with at most `tokens` stretched tokens."""
        return self._counter.tail(text, tokens * _UNIT // self._thousandths)

    def _stretch(self, tokens: int) -> int:
        return -(-tokens * self._thousandths // _UNIT)


@value
class FittedWindow:
    """A call that fits: its messages and its limit. `plan` and `counter` are valid from this window on.

    `counted_tokens` are the tokens of `messages` by the model's counter. `is_again` is whether the previous window
    showed the same text.
    """

    window: Window
    plan: WindowPlan
    counter: TokenCounter
    messages: Sequence[Message]
    notes: str
    counted_tokens: int
    max_tokens: int
    is_exact: bool
    is_again: bool = False

    @property
    def shows_text(self) -> bool:
        """Whether the window shows a part of the material."""
        return bool(self.plan.find_text(self.window))

    def build_bare_prompt(self) -> Sequence[Message]:
        """Return the messages without the text that this window shows first; empty if it shows no new text."""
        if self.is_again or not self.shows_text:
            return ()
        return self.plan.build_prompt(self.window, notes=self.notes, has_text=False)


async def fit_windows(
    plan: WindowPlan,
    *,
    model: ChatModel,
    notes: Callable[[TokenCounter], str],
    must_end: Callable[[], bool],
    must_repeat: Callable[[], bool] = lambda: False,
    sizes: Callable[[], tuple[int, int]] | None = None,
) -> AsyncGenerator[FittedWindow, None]:
    """Yield the calls of `plan` in order.

    Before each call, `notes` returns the carryover within carryover_size by the given counter, and `must_end` returns
    whether a reasoning window must be the last. After each call, `must_repeat` returns whether it is sent once more,
    and `sizes` chunk_size and carryover_size: if they are smaller, it was refused, and its text is planned again.

    Raises:
        ContextExhaustedError: the first prompt leaves no room for output or for the notes, even with very little
            material; or, later, even the notes alone leave none.
    """
    counter, stretch, attempts, steps, is_again = model.counter, _UNIT, 0, 0, False
    told_frame, counted_frame, is_begun = 0, 0, False
    windows: Iterator[Window] = plan.list_windows()
    while (window := next(windows, None)) is not None:
        window = replace(window, is_last=window.is_last or (window.reading is None and must_end()))
        carried = notes(counter)
        characters = len(plan.question) + len(carried) + len(plan.find_text(window))
        messages = await run_by_size(characters, partial(plan.build_prompt, window, notes=carried))
        exact, counted = await model.count_exactly(messages), await count_prompt(messages, model.counter)
        tokens = counted if exact is None else exact
        if not told_frame and tokens > counted:
            told_frame, counted_frame = await _measure_frame(plan, model)
            # A run that has begun goes on for as long as its prompts fit.
            if told_frame and not is_begun:
                _check_frame(told_frame, plan)
        room, least = plan.limits.chunk_size - tokens, max(1, plan.limits.writing_tokens // 2)
        if room >= least:
            held = 0 if window.is_last else min(plan.reserve_tokens, room - least)
            is_exact = exact is not None or model.counter.is_exact
            yield FittedWindow(
                window=window,
                plan=plan,
                counter=counter,
                messages=messages,
                notes=carried,
                counted_tokens=counted,
                max_tokens=room - held,
                is_exact=is_exact,
                is_again=is_again,
            )
            attempts, smaller = 0, _shrink(plan, sizes)
            if smaller is plan:
                is_begun = True
                if is_again := must_repeat():
                    windows = chain((window,), windows)
                else:
                    steps += window.reading is None
                continue
            plan = smaller
        else:
            attempts += 1
            if attempts > _MOST_ATTEMPTS:
                raise _refuse_window(tokens, plan)
            # The same stretch would give the same plan again. An earlier stretch may be of another calibration.
            least_stretch = stretch * 11 // 10 if attempts > 1 else _UNIT
            stretch = max(_find_stretch(tokens - told_frame, counted - counted_frame), least_stretch)
            counter = StretchedCounter(model.counter, thousandths=stretch)
        plan = await _plan_rest(
            plan, window, counter=counter, steps=steps, tokens=tokens, frame=told_frame, is_begun=is_begun
        )
        steps, windows = 0, plan.list_windows()


def _find_stretch(exact: int, counted: int) -> int:
    """Return by how much, in thousandths, `counted` tokens must be stretched to be those that the server told."""
    return -(-exact * _UNIT // max(1, counted))


def _shrink(plan: WindowPlan, sizes: Callable[[], tuple[int, int]] | None) -> WindowPlan:
    """Return `plan` with smaller windows if `sizes` says so, else `plan`."""
    chunk_size, carryover_size = sizes() if sizes else (plan.limits.chunk_size, 0)
    if chunk_size >= plan.limits.chunk_size:
        return plan
    return replace(plan, limits=replace(plan.limits, chunk_size=chunk_size, carryover_size=carryover_size))


async def _measure_frame(plan: WindowPlan, model: ChatModel) -> tuple[int, int]:
    """Return the frame's tokens by the server and by the model's counter; zeros if the server does not count it."""
    messages = find_frame(model.counter, plan.nonce, plan.limits.rules)
    exact = await model.count_exactly(messages)
    return (0, 0) if exact is None else (exact, model.counter.count_prompt(messages))


def _check_frame(exact: int, plan: WindowPlan) -> None:
    """Raise ContextExhaustedError if a frame of `exact` tokens leaves too little of a window."""
    try:
        check_frame(plan.limits, exact)
    except InvalidConfigError as error:
        raise _refuse_window(exact, plan, error) from error


async def _plan_rest(
    plan: WindowPlan, window: Window, *, counter: TokenCounter, steps: int, tokens: int, frame: int, is_begun: bool
) -> WindowPlan:
    """Return a plan for the text of `window`, whose prompt has `tokens` tokens, and for all text after it.

    Raises:
        ContextExhaustedError: there is no such plan, and the run has not begun.
    """
    is_reading, read = window.reading is not None, 0
    unread = plan.material if window.shows_material else ""
    if window.reading is not None:
        read = window.reading.segment - 1
        unread = "".join(plan.segments[read - plan.segments_before :])
    work = partial(
        plan_windows,
        query=plan.question,
        material=unread,
        limits=replace(plan.limits, max_iterations=plan.limits.max_iterations - steps),
        counter=counter,
        nonce=plan.nonce,
        segments_before=read,
        is_reading=is_reading,
        may_leave_out=is_begun,
        frame_tokens=frame,
    )
    try:
        made = await run_by_size(len(unread), work)
    except (InvalidConfigError, ContextExhaustedError) as error:
        refusal = _refuse_window(tokens, plan, error)
        if not is_begun:
            raise refusal from error
        return _plan_last_window(plan, window, refusal)
    return replace(
        made,
        is_question_clipped=plan.is_question_clipped or made.is_question_clipped,
        shortfall=made.shortfall or plan.shortfall,
        is_text_left_out=made.is_text_left_out or plan.is_text_left_out,
    )


def _plan_last_window(plan: WindowPlan, window: Window, refusal: ContextExhaustedError) -> WindowPlan:
    """Return a plan with one last window, which shows the notes and none of the text of `window` and after it."""
    is_unread = bool(plan.find_text(window))
    why = f"{UNREAD if is_unread else _ENDED_EARLY} {refusal.full_message}"
    return replace(
        plan,
        limits=replace(plan.limits, max_iterations=1),
        material="",
        segments=(),
        shortfall=plan.shortfall or why,
        is_text_left_out=is_unread or plan.is_text_left_out,
    )


def _refuse_window(tokens: int, plan: WindowPlan, error: ReasondError | None = None) -> ContextExhaustedError:
    size = plan.limits.chunk_size
    details = [describe_violations(error)] if isinstance(error, InvalidConfigError) else []
    return ContextExhaustedError(
        f"a prompt of {tokens} tokens leaves {max(0, size - tokens)} of chunk_size {size} for notes of carryover_size "
        f"{plan.limits.carryover_size} and to write in, and shorter passages do not help",
        remedy="; ".join(["Raise chunk_size or lower carryover_size", *details]) + ".",
        metadata={"prompt_tokens": str(tokens), "chunk_size": str(size)},
    )

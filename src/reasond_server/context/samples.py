"""Independent samples of one prompt: their temperatures, their calls, and the reading of their answers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from math import exp
from statistics import fmean
from typing import TYPE_CHECKING, Final

from reasond_server.context.answers import extract_answer, is_placeholder
from reasond_server.context.calls import ModelReply
from reasond_server.context.tags import restore
from reasond_server.context.vote_forms import normalize_answer
from reasond_server.dialects.code_blocks import choose_python, find_program, read_blocks
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import ModelFinish
from reasond_server.types import FinishReason
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.context.stages import StageCalls, StagePrompt
    from reasond_server.errors.base import ReasondError

SAMPLES_AT_ONCE: Final = 8
"""Most samples of one run that are taken at the same time."""

_LEAST_WARM_UP_S: Final = 1.0
_MOST_WARM_UP_S: Final = 60.0
# A processor reads some 200 tokens a second; what a graphics card reads has begun long before.
_WARM_UP_S_PER_TOKEN: Final = 0.005
_LEAST_SHARE: Final = 256
_LADDER_SPREAD: Final = 0.3
_LEAST_TEMPERATURE: Final = 0.05
_MOST_TEMPERATURE: Final = 2.0


@value
class SampledAnswer:
    """The text and the answer of a sample; without a whole answer `normalized_answer` is empty.

    `is_withheld` says that the provider withheld the text. `mean_probability` is the geometric mean of the
    probabilities of its tokens; None if they were not told.
    """

    text: str
    answer: str
    normalized_answer: str
    is_tagged: bool
    is_withheld: bool
    mean_probability: float | None = None

    @property
    def solution(self) -> str:
        """Text and answer as later calls are shown them."""
        is_shown = "\n" in self.answer and self.answer in self.text
        answer = "" if is_shown or not self.answer else f"Final answer: {self.answer}"
        return "\n".join(part for part in (self.text, answer) if part)


def read_sample(reply: ModelReply, *, is_program: bool) -> SampledAnswer:
    """Read the answer of a reply: a complete tagged answer, or one found in untagged text, or the code in that.

    The code comes first if the question asks for a program (`is_program`).
    """
    parsed = reply.parsed
    content, before = parsed.content.strip(), parsed.text.strip()
    is_withheld = reply.finish is ModelFinish.CONTENT_FILTER
    is_tagged = bool(content) and parsed.is_closed and not is_withheld
    answer = content
    if not content and reply.finish is ModelFinish.STOP:
        blocks = read_blocks(before)
        shown = [block for block in choose_python(blocks) if not is_placeholder(block.text)]
        code = "\n\n".join(f"```{block.language}\n{block.text}\n```" for block in shown)
        program = code if blocks else find_program(before)
        answer = (program if is_program else "") or extract_answer(before) or code
    is_whole = is_tagged or (not content and bool(answer) and not is_withheld)
    return SampledAnswer(
        text="\n\n".join(part for part in (parsed.thinking.strip(), before) if part),
        answer=answer,
        normalized_answer=normalize_answer(restore(answer)) if is_whole else "",
        is_tagged=is_tagged,
        is_withheld=is_withheld,
        mean_probability=exp(fmean(each.logprob for each in reply.tokens)) if reply.tokens else None,
    )


class OutputShares:
    """What the samples of one run may write together, divided among them wave by wave; `limit` None: no bound.

    A sample may write its share of what is left, at least 256 tokens: fewer samples that end are worth more than many
    that are cut. Once some have ended, twice the longest of them is enough.

    Attributes:
        share: most tokens that a call of the current wave may write; None for no bound.
    """

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._longest = 0
        self.share: int | None = None

    def divide(self, wave: int, *, outstanding: int, calls_each: int = 1) -> int:
        """Set the share of the next calls and return how many of a `wave` may be made, at least the very first one.

        Args:
            wave: calls that are to be made at the same time.
            outstanding: samples that are still to be taken, this wave included.
            calls_each: calls of a sample, its judgement included.
        """
        if self._left is None:
            return wave
        least = min(_LEAST_SHARE, 2 * self._longest) if self._longest else _LEAST_SHARE
        self.share = max(self._left // max(1, outstanding * calls_each), least)
        count = min(wave, self._left // (self.share * calls_each))
        if not (count or self._longest):
            self.share, count = self._left, 1
        return count

    def divide_evenly(self, wave: int) -> None:
        """Set the share of calls that are all made."""
        if self._left is not None:
            self.share = max(1, self._left // wave)

    def can_cover(self, calls: int) -> bool:
        """Return whether so many calls may each write what one needs."""
        return self._left is None or self._left // calls >= min(_LEAST_SHARE, 2 * self._longest)

    def settle(self, written: int) -> None:
        """Subtract what an ended call wrote."""
        if self._left is not None:
            self._left = max(0, self._left - written)
            self._longest = max(self._longest, written)

    def settle_failure(self, error: ReasondError) -> None:
        """Subtract the share of a failed call, unless nothing was spent."""
        if not isinstance(error, (*UNSPENT, TokenBudgetExhaustedError)):
            self.settle(self.share or 0)

    def limit(self, prompt: StagePrompt) -> StagePrompt:
        """Return `prompt` with at most the share."""
        return prompt if self.share is None else replace(prompt, max_tokens=min(prompt.max_tokens, self.share))


class SampleCalls:
    """The calls of one run that sample the same prompt.

    Each reads the `prompt_tokens` of `prompt`, has one of `temperatures`, and writes at most its share. Its label is
    needed because samples at the same temperature have equal requests, and a replay must not swap them.
    """

    def __init__(
        self,
        *,
        stages: StageCalls,
        prompt: StagePrompt,
        shares: OutputShares,
        temperatures: Sequence[float],
        prompt_tokens: int,
        top_logprobs: int | None = None,
    ) -> None:
        warm_up_s = _LEAST_WARM_UP_S + _WARM_UP_S_PER_TOKEN * prompt_tokens
        self._warm_up_s = min(warm_up_s, _MOST_WARM_UP_S)
        self._stages = stages
        self.is_program = stages.is_program
        self._prompt = prompt
        self._shares = shares
        self._temperatures = temperatures
        self._top_logprobs = top_logprobs

    def prepare_wave(self, taken: int, count: int) -> Sequence[Callable[[], Awaitable[ModelReply]]]:
        """Return the next `count` calls after `taken` ones, to be made at the same time.

        In the first wave, the first call begins alone. The others begin when it has begun to write, so that a server
        with a prefix cache reads the prompt only once, but at the latest when a slow server has read it: a model that
        does not stream its reasoning may send nothing for long.
        """
        begun = asyncio.Event()
        if taken:
            begun.set()
        return [partial(self._take, taken + place, begun, is_first=not place) for place in range(count)]

    async def _take(self, number: int, begun: asyncio.Event, *, is_first: bool) -> ModelReply:
        if not is_first:
            # Not wait_for: in Python 3.11 it loses a cancellation that arrives when the event is set.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._warm_up_s):
                    await begun.wait()
        try:
            call = self._stages.stream(
                self._shares.limit(self._prompt),
                temperature=self._temperatures[number],
                label=f"sample {number}",
                top_logprobs=self._top_logprobs,
            )
            async with aclosing(call) as heard:
                async for piece in heard:
                    begun.set()
                    if isinstance(piece, ModelReply):
                        reply = piece
        finally:
            begun.set()
        return reply


def build_ladder(temperature: float, samples: int) -> Sequence[float]:
    """Return the temperature of each sample: T * (1 + 0.3 * r / R), between 0.05 and 2.

    r is 0, -1, 1, -2, 2 … and R is the largest of them. So the first sample has T itself, and all are within 30 % of T.
    """
    rungs = [(place + 1) // 2 * (1 if place % 2 == 0 else -1) for place in range(samples)]
    largest = max(map(abs, rungs)) or 1
    wanted = [temperature * (1 + _LADDER_SPREAD * rung / largest) for rung in rungs]
    least = min(_LEAST_TEMPERATURE, temperature)
    return [round(min(max(each, least), _MOST_TEMPERATURE), 4) for each in wanted]


def refuse_equal_samples(temperature: float, samples: int) -> None:
    """Refuse a temperature at which all samples would be equal.

    Raises:
        InvalidConfigError: `temperature` is 0 with more than one sample.
    """
    if temperature == 0 and samples > 1:
        description = (
            f"must be above 0 with {samples} samples, which would all say the same at 0.0; with samples 1 it may be 0"
        )
        raise InvalidConfigError.at("temperature", description)


def explain_silence(samples: Sequence[SampledAnswer]) -> FinishReason:
    """Return the finish reason if no sample has an answer: CONTENT_FILTERED if the provider withheld every one."""
    is_withheld = all(each.is_withheld for each in samples)
    return FinishReason.CONTENT_FILTERED if is_withheld else FinishReason.TRUNCATED


def describe_gaps(
    samples: Sequence[SampledAnswer], errors: Sequence[ReasondError], *, taken: int, consequence: str = ""
) -> Sequence[str]:
    """Return the warnings about those of `taken` samples that have no answer; `consequence` ends their sentences."""
    failed = [error for error in errors if not isinstance(error, TokenBudgetExhaustedError)]
    withheld = sum(each.is_withheld for each in samples)
    silent = sum(not each.normalized_answer for each in samples) - withheld
    gaps = []
    if failed:
        reasons = ", ".join(sorted({error.reason for error in failed}))
        gaps.append(f"{len(failed)} of {taken} samples failed ({reasons}){consequence}.")
    if withheld:
        gaps.append(f"{withheld} of {taken} samples were withheld by a content filter{consequence}.")
    if silent:
        gaps.append(f"{silent} of {taken} samples ended without a whole answer{consequence}.")
    return gaps

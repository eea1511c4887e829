"""The model calls of a run in stages: each call shows what earlier ones wrote, and all of them fit the model's window.

All prompts of a run have the same beginning (`context.sections`), so a model server that caches prompts reads it once.
Texts of earlier stages follow, each in `<passage NONCE name="draft">`. The instruction of the call is trusted, and is
last, behind all fences.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import (
    LEAST_TOKENS,
    bound_prompt,
    build_no_room_error,
    count_prompt,
    run_by_size,
    stream_reply,
)
from reasond_server.context.final_replies import fit_instruction
from reasond_server.context.program_requests import requests_program
from reasond_server.context.sections import FENCE_TOKENS, SYSTEM, fence, fence_task
from reasond_server.context.tags import TagKind, neutralize
from reasond_server.llm.counting import make_fork
from reasond_server.llm.model import ChatModel, Message, Role
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.context.calls import ModelReply
    from reasond_server.context.replies import Fragment
    from reasond_server.types import Task

LEAST_SHOWN_TOKENS: Final = 64
"""Fewest tokens of an earlier text that a call must have room to show."""

_CLIPPED: Final = "…"
_MARGIN_TOKENS: Final = 64


@value
class Shown:
    """An earlier text as a call shows it: `name` is a word of ours, `text` is untrusted."""

    name: str
    text: str


@value
class StagePrompt:
    """The prompt of one call and the tokens that the model may write after it."""

    messages: Sequence[Message]
    max_tokens: int


class StageCalls:
    """Builds and makes the calls of one run; `prepare_stages` makes it.

    Args:
        model: the model of the run.
        question: the question; untrusted, like the material.
        material: text that the question is about; empty for none.
        nonce: the run's mark for fences.

    Attributes:
        is_program: whether the question asks for a program.
    """

    def __init__(self, *, model: ChatModel, question: str, material: str, nonce: str) -> None:
        self._model = model
        # A fork does not learn, so a replay cuts texts at the same places.
        self._counter = make_fork(model.counter)
        self._nonce = nonce
        self._system = Message(role=Role.SYSTEM, content=SYSTEM)
        self.is_program = requests_program(question)
        self._beginning = fence_task(question=question, material=material, nonce=nonce)
        self._size = len(question) + len(material)
        self._room: int | None = None
        self._fewest: tuple[int, int] | None = None
        self._cut: dict[str, None] = {}

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the caller: calls that may write less than was asked for, and texts that were shortened."""
        found = []
        if self._fewest is not None:
            found.append(
                f"A call could write only {self._fewest[0]} of {self._fewest[1]} tokens: the model's context window of "
                f"{self._model.context_window} has no more room."
            )
        if self._cut:
            found.append(f"Only the end was shown to the model, for want of room, of: {', '.join(self._cut)}.")
        return tuple(found)

    async def measure(self, instructions: Sequence[str], *, shown: int) -> None:
        """Measure the room of the window behind the longest prompt with one of `instructions`.

        Raises:
            ContextExhaustedError: there is no room for a reply and for `shown` earlier texts.
        """
        window = self._model.context_window
        if window is None:
            return
        fitted = [fit_instruction(each, is_program=self.is_program) for each in instructions]
        bare = self._build(max(fitted, key=len), ())
        exact = None if self._counter.is_exact else await self._model.count_exactly(bare)
        prompt = await count_prompt(bare, self._counter) if exact is None else exact
        least = LEAST_TOKENS + shown * (FENCE_TOKENS + LEAST_SHOWN_TOKENS)
        self._room = window - prompt - _MARGIN_TOKENS
        if self._room < least:
            raise build_no_room_error(prompt, window, least=least + _MARGIN_TOKENS)

    async def bound_tokens(self, instruction: str, *, more_tokens: int) -> int:
        """Return an upper bound of the tokens of a call: its bare prompt and `more_tokens`."""
        bare = self._build(instruction, ())
        return more_tokens + await run_by_size(self._size, partial(bound_prompt, bare, self._counter))

    async def count_tokens(self, prompt: StagePrompt) -> int:
        """Return the tokens of a prompt, as the counter counts them."""
        return await count_prompt(prompt.messages, self._counter)

    def fit(self, instruction: str, *shown: Shown, max_tokens: int) -> StagePrompt:
        """Return the prompt that shows as much of the end of each text as fits.

        Half of the room is kept for the reply, or as much as it may write; the texts share the rest.
        """
        texts = [neutralize(each.text) for each in shown]
        if self._room is None:
            return StagePrompt(messages=self._build(instruction, shown), max_tokens=max_tokens)
        room = self._room - FENCE_TOKENS * len(shown)
        sizes = [self._counter.count_text(text) for text in texts]
        written = min(max_tokens, max(room // 2 if shown else room, room - sum(sizes)))
        if written < max_tokens and (self._fewest is None or written < self._fewest[0]):
            self._fewest = (written, max_tokens)
        left = room - written
        kept = []
        for place, (each, text, size) in enumerate(zip(shown, texts, sizes, strict=True)):
            most = left - sum(min(later, left // (len(texts) - place)) for later in sizes[place + 1 :])
            if size > most:
                self._cut[each.name] = None
            kept.append(Shown(name=each.name, text=self._clip(text, size, most)))
            left -= min(size, most)
        return StagePrompt(messages=self._build(instruction, kept), max_tokens=written)

    def stream(
        self,
        prompt: StagePrompt,
        *,
        temperature: float,
        kinds: Sequence[TagKind] = (TagKind.ANSWER,),
        label: str = "",
        top_logprobs: int | None = None,
    ) -> AsyncGenerator[Fragment | ModelReply, None]:
        """Make the call; see `context.calls.stream_reply`.

        Calls of equal prompts at the same time need different labels.
        """
        return stream_reply(
            model=self._model,
            messages=prompt.messages,
            max_tokens=prompt.max_tokens,
            temperature=temperature,
            kinds=kinds,
            label=label,
            top_logprobs=top_logprobs,
        )

    def _clip(self, text: str, size: int, most: int) -> str:
        if size <= most:
            return text
        return _CLIPPED + self._counter.tail(text, max(0, most - self._counter.count_text(_CLIPPED)))

    def _build(self, instruction: str, shown: Sequence[Shown]) -> Sequence[Message]:
        sections = [fence("passage", each.text, nonce=self._nonce, attributes=f' name="{each.name}"') for each in shown]
        asked = fit_instruction(instruction, is_program=self.is_program)
        return (self._system, Message(role=Role.USER, content="\n".join([self._beginning, *sections, asked])))


async def prepare_stages(
    task: Task, *, model: ChatModel, nonce: str, instructions: Sequence[str], shown: int
) -> StageCalls:
    """Return the calls of a run that uses `instructions` and shows at most `shown` earlier texts at once.

    Raises:
        ContextExhaustedError: question and material leave too little of the model's context window.
    """
    build = partial(StageCalls, model=model, question=task.query, material=task.material, nonce=nonce)
    calls = await run_by_size(task.text_characters, build)
    await calls.measure(instructions, shown=shown)
    return calls

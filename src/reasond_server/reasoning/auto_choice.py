"""The rule behind the strategy `auto`: what does not fit the model's window is read by bounded_context.

    prompt = tokens of instructions, history, question and material + 512 for rules and fences
    reply  = 4096, or a quarter of the window if that is less
    prompt + reply <= window, or the window is unknown: the strategy that would have been chosen without the rule
    else: bounded_context

The rule looks at sizes alone, never at what the texts say.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from reasond_server.llm.counting.requests import count_bytes
from reasond_server.llm.model import LONG_TEXT_CHARACTERS, Message, Role
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatModel
    from reasond_server.types import Task

AUTO: Final = "auto"
"""The name under which a task asks for the rule."""
READER: Final = "bounded_context"
"""The strategy that reads what does not fit."""

_FRAME_TOKENS: Final = 512
_REPLY_TOKENS: Final = 4096
# A text with more bytes for each token of the window than this is not counted: no tokenizer makes such tokens of prose.
_MOST_BYTES_PER_TOKEN: Final = 16


@value
class Fit:
    """Whether a task fits the model's window, and the sentence that says why."""

    fits: bool
    reason: str


async def measure_fit(task: Task, model: ChatModel) -> Fit:
    """Measure `task` against the window of `model`, which adds instructions and history; see the module."""
    window = model.context_window
    if window is None:
        return Fit(fits=True, reason="the window of the model is not known")
    room = window - min(_REPLY_TOKENS, window // 4) - _FRAME_TOKENS
    size = count_bytes(task.query) + count_bytes(task.material)
    if size > _MOST_BYTES_PER_TOKEN * window:
        return Fit(fits=False, reason=f"the task has {size} bytes, and the model's window {window} tokens")
    messages = [Message(role=Role.USER, content=f"{task.query}\n{task.material}")]
    if task.text_characters > LONG_TEXT_CHARACTERS:
        prompt = await asyncio.to_thread(model.counter.count_prompt, messages)
    else:
        prompt = model.counter.count_prompt(messages)
    reason = f"the task has {prompt} tokens, and the model's window of {window} has room for {max(room, 0)}"
    return Fit(fits=prompt <= room, reason=reason)

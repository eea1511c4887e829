"""What does not fit the window of a model: old results of tools are reduced where the client lets it, else refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydantic_core import to_json

from reasond_server.errors.model import ContextExhaustedError
from reasond_server.protocols.openai_requests import Asked, write_input
from reasond_server.tools.previews import render_preview
from reasond_server.types.turns import TurnReentry, TurnStart

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatModel
    from reasond_server.types import HistoryMessage

_REPLY_TOKENS: Final = 4096
_PREVIEW_TOKENS: Final = 200


def fit_window(asked: Asked, model: ChatModel, *, may_reduce: bool, history_share: float) -> Asked:
    """Return `asked` with previews in the place of the oldest results of its history, until it fits, and a warning.

    A turn leaves out earlier messages that take more than `history_share` of the window. A re-entry and a task with a
    material are left as they are: turns and strategies fit these themselves.

    Raises:
        ContextExhaustedError: it does not fit, and may not be reduced; nothing was spent.
    """
    source, window, count = asked.source, model.context_window, model.counter.count_text
    if window is None or isinstance(source, TurnReentry) or source.material:
        return asked
    room = window - min(_REPLY_TOKENS, window // 4)
    parts = [("The request has", write_input(asked), room)]
    if isinstance(source, TurnStart):
        said = "\n".join(text for message in source.history for text in message.list_texts())
        parts.append(("The earlier messages of a turn have", said, int(history_share * room)))
    surplus, most, what = max((count(text) - most, most, what) for what, text, most in parts)
    if surplus > 0 and not may_reduce:
        raise ContextExhaustedError(
            f"{what} about {surplus + most} tokens, and the model's window of {window} has room for {most} of them",
            remedy="Shorten the input, or send truncation 'auto'.",
        )
    history, previews = list(source.history), 0
    for place, message in enumerate(history if may_reduce else ()):
        if surplus <= 0:
            break
        history[place], saved, reduced = _reduce(message, model)
        surplus -= saved
        previews += reduced
    if not previews:
        return asked
    warning = (
        f"{previews} results of tools, the oldest, are shown to the model as previews: the conversation does not fit "
        f"its window of {window} tokens."
    )
    return replace(asked, source=replace(source, history=tuple(history)), warnings=(*asked.warnings, warning))


def _reduce(message: HistoryMessage, model: ChatModel) -> tuple[HistoryMessage, int, int]:
    """Return `message` with previews of its long results, the tokens that this saves, and how many there are."""
    results, saved, reduced = [], 0, 0
    for result in message.tool_results:
        whole = model.counter.count_text(result.result_json)
        if whole > 2 * _PREVIEW_TOKENS:
            preview = render_preview(
                result.result_json, tokens=_PREVIEW_TOKENS, count=model.counter.count_text, query=message.text
            )
            text = to_json(preview.text).decode()
            saved += whole - model.counter.count_text(text)
            reduced += 1
            results.append(replace(result, result_json=text))
        else:
            results.append(result)
    return replace(message, tool_results=tuple(results)), saved, reduced

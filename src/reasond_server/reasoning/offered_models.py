"""The models that tasks may name, and what a task adds to each call of its model."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond_server.base.violations import suggest_nearest
from reasond_server.context.answer_schemas import write_schema_rule
from reasond_server.context.said_messages import write_said
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.llm.model import ImagePart, find_image_tokens
from reasond_server.llm.prefaced_model import Preface, PrefacedModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.llm.model import ChatModel
    from reasond_server.types import Task

_FOR_COUNTS: Final = "x" * 28
"""As long as a nonce."""


class OfferedModels:
    """The server's `own` model, and the `others` that the operator lets tasks name, by the names of their backends."""

    def __init__(self, own: ChatModel, others: Mapping[str, ChatModel] = MappingProxyType({})) -> None:
        self.own = own
        self._others = others

    @property
    def names(self) -> Sequence[str]:
        """The names that a task may give, sorted."""
        return sorted(self._others)

    def find(self, name: str | None) -> ChatModel:
        """Return the model with this name, the server's own for None.

        Raises:
            InvalidRequestError: it is not offered.
        """
        if name is None:
            return self.own
        if name not in self._others:
            known = suggest_nearest(name, self._others) or "; none is offered ([llm] offered), so leave it out"
            description = f"must be a backend that is offered here, got {show(name)}{known}"
            raise InvalidRequestError.of(Violation(field="model", description=description))
        return self._others[name]


def preface_model(model: ChatModel, task: Task, *, nonce: str = _FOR_COUNTS) -> ChatModel:
    """Return `model` with the instructions, the history, the answer schema and the images of `task` in each call.

    `nonce` marks the fences of tool results in the history; without one the model may only count.

    Raises:
        InvalidRequestError: there are images, and the model takes none.
    """
    if not task.has_options:
        return model
    tokens = find_image_tokens(model)
    if task.images and not tokens:
        description = f"are not taken by the model {model.name!r}; leave them out, or name another model"
        raise InvalidRequestError.of(Violation(field="images", description=description))
    images = tuple(ImagePart(media_type=each.media_type, base64=each.base64, tokens=tokens) for each in task.images)
    rule = "" if task.answer_schema is None else write_schema_rule(task.answer_schema)
    history = tuple(write_said(task.history, nonce=nonce, is_native=model.has_native_tools, image_tokens=tokens))
    system = "\n\n".join(part for part in (task.system, rule) if part)
    return PrefacedModel(model=model, preface=Preface(system=system, history=history, images=images))

"""The choices of `auto` that were measured: a strategy for each form of task."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.types.tasks import Task


class TaskForm(StrEnum):
    """What a task is made of, beside its question."""

    QUESTION = "question"
    MATERIAL = "material"
    SCHEMA = "schema"


@value
class MeasuredChoice:
    """The strategy with its parameters, and the figures that justify it, in a sentence."""

    strategy: str
    config: Mapping[str, Any]
    why: str


def find_form(task: Task) -> TaskForm:
    """Return the form of `task`."""
    if task.answer_schema is not None:
        return TaskForm.SCHEMA
    return TaskForm.MATERIAL if task.material else TaskForm.QUESTION

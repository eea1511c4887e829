"""The task of an execution: types -> proto, so that a caller can read, and send again, what was asked for."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Final

from reasond.v1 import execution_pb2
from reasond_server.grpc_api.filling import json_text
from reasond_server.grpc_api.structs import fill_struct
from reasond_server.grpc_api.times import fill_duration

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from reasond_server.types import Budget, Json, Task

_CONFIG: Final = execution_pb2.ReasoningTask.DESCRIPTOR.oneofs_by_name["config"]
_TYPED: Final = {field.name for field in _CONFIG.fields} - {"custom"}


def fill_task(message: execution_pb2.ReasoningTask, task: Task, *, strategy: str) -> None:
    """Write `task`; its configuration is that of `strategy`, the one that works, if the task names none."""
    message.query, message.material = task.query, task.material
    if task.strategy is not None:
        message.strategy = task.strategy
    _fill_config(message, task.config, strategy=task.strategy or strategy)
    message.agent = task.agent or ""
    message.agent_capabilities.extend(task.agent_capabilities)
    _fill_budget(message.budget, task.budget)
    message.system = task.system
    for each in task.history:
        role = execution_pb2.Speaker.Value(f"SPEAKER_{each.role.name}")
        message.history.add(role=role, text=each.text)
    if task.model is not None:
        message.model = task.model
    message.stop.extend(task.stop)
    for image in task.images:
        message.images.add(media_type=image.media_type, data=b64decode(image.base64))
    if task.answer_schema is not None:
        message.answer_schema_json = json_text(task.answer_schema)


def _fill_config(message: execution_pb2.ReasoningTask, config: Json, *, strategy: str) -> None:
    if not config:
        return
    if strategy in _TYPED:
        _fill_typed(getattr(message, strategy), config)
    else:
        # Without the name nobody could say whose configuration it is.
        message.strategy = strategy
        fill_struct(message.custom, config)


def _fill_typed(message: Message, config: Json) -> None:
    """Write the parameters of a strategy; those that are not set are left out, as its proto has them."""
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        value = config.get(field.name)
        if value is None:
            continue
        if field.enum_type is not None:
            prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
            value = field.enum_type.values_by_name[f"{prefix}{value.upper()}"].number
        setattr(message, field.name, value)


def _fill_budget(message: execution_pb2.Budget, budget: Budget) -> None:
    for name in ("max_total_tokens", "max_model_calls", "max_tool_calls", "max_output_tokens"):
        if (bound := getattr(budget, name)) is not None:
            setattr(message, name, bound)
    if budget.max_elapsed_s is not None:
        fill_duration(message.max_elapsed, budget.max_elapsed_s)

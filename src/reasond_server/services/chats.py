"""Chats of OpenAI's and Anthropic's clients: ReasoningService once more, with the permissions of its RPCs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.http_api.http_calls import Method, Methods, Streaming
from reasond_server.protocols.asked_runs import AskedRuns
from reasond_server.protocols.chat.chat_params import ChatParams, ModelParams
from reasond_server.protocols.chat.completions import Completions
from reasond_server.protocols.message_parts import DocumentTexts
from reasond_server.protocols.messages.message_params import MessageParams
from reasond_server.protocols.messages.message_service import Messages
from reasond_server.protocols.model_catalogue import ModelCatalogue, ModelPreset
from reasond_server.protocols.openai_endpoint import (
    CHAT_METHOD,
    COUNT_MESSAGES_METHOD,
    COUNT_METHOD,
    MESSAGE_MODELS_METHOD,
    MESSAGES_METHOD,
    MODELS_METHOD,
    REPLAY_METHOD,
    RESPONSE_METHODS,
    RESPONSES_METHOD,
    OpenAiEndpoint,
)
from reasond_server.protocols.responses.response_params import ResponseIdParams, ResponseParams
from reasond_server.protocols.responses.response_service import Responses
from reasond_server.services.executions import DECLARATION as EXECUTIONS
from reasond_server.services.reasoning import DECLARATION
from reasond_server.services.turns import DECLARATION as TURNS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from datetime import datetime

    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.http_api.http_app import Interface
    from reasond_server.http_api.params import Params
    from reasond_server.protocols.asked_runs import Attachments
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.turns.turn_service import TurnService
    from reasond_server.types import Cursor, Principal

_REASONING: Final = DECLARATION.operation("Reason")
_LISTING: Final = DECLARATION.operation("ListStrategies")
CHAT_METHODS: Final = (
    CHAT_METHOD,
    COUNT_MESSAGES_METHOD,
    COUNT_METHOD,
    MESSAGE_MODELS_METHOD,
    MESSAGES_METHOD,
    MODELS_METHOD,
    REPLAY_METHOD,
    RESPONSES_METHOD,
    *RESPONSE_METHODS.values(),
)


def build_chat_interface(
    service: ReasoningService,
    turns: TurnService,
    *,
    desk: ExecutionDesk,
    attachments: Attachments,
    presets: Mapping[str, ModelPreset],
    max_pdf_files: int,
    now: Callable[[], datetime],
) -> Interface:
    """Return the OpenAI-compatible interface of `service` and `turns`, with the operator's models.

    `desk` finds executions of every kind; `attachments` finds what a repeated request began; of a request at most
    `max_pdf_files` are read.

    Raises:
        SettingsError: a model of the operator cannot work.
    """
    catalogue = ModelCatalogue(strategies=service.strategies(), presets=presets, offers_auto=service.offers_auto)
    runs = AskedRuns(reasoning=service, turns=turns, turn_operation=TURNS.operation("RunTurn"))
    documents = DocumentTexts(most_files=max_pdf_files, limits=service.limits)
    completions = Completions(service=service, runs=runs, catalogue=catalogue, documents=documents, now=now)
    models = Method(operation=_LISTING, params=ModelParams, run=completions.list_models)
    responses = Responses(
        runs=runs,
        desk=desk,
        catalogue=catalogue,
        model=service.kind.models.own,
        attachments=attachments,
        documents=documents,
    )
    messages = Messages(
        runs=runs,
        catalogue=catalogue,
        counter=service.kind.models.own.counter,
        attachments=attachments,
        documents=documents,
        now=now,
    )
    own = {
        CHAT_METHOD: _create(ChatParams, completions.create, completions.stream),
        MODELS_METHOD: models,
        **_list_responses(responses),
        **_list_messages(messages),
    }
    return partial(OpenAiEndpoint, Methods([own]))


def _create(
    params: type[Params],
    run: Callable[[Principal, Any], Awaitable[dict[str, Any]]],
    stream: Callable[[Principal, Any, Cursor | None], AsyncGenerator[bytes, None]],
) -> Method:
    """Return the method that works on a request of a wire: it needs what Reason and ReasonIterations need."""
    streaming = Streaming(operation=DECLARATION.operation("ReasonIterations"), open=stream)
    return Method(operation=_REASONING, params=params, run=run, streaming=streaming)


def _list_messages(messages: Messages) -> Mapping[str, Method]:
    return {
        MESSAGES_METHOD: _create(MessageParams, messages.create, messages.stream),
        COUNT_MESSAGES_METHOD: Method(operation=_REASONING, params=MessageParams, run=messages.count),
        MESSAGE_MODELS_METHOD: Method(operation=_LISTING, params=ModelParams, run=messages.list_models),
    }


def _list_responses(responses: Responses) -> Mapping[str, Method]:
    """Return the methods of the Responses interface: those that start need what Reason needs, the others less."""
    read, follow = EXECUTIONS.operation("FollowExecution"), EXECUTIONS.operation("FollowExecution")
    cancel, delete = EXECUTIONS.operation("CancelExecution"), EXECUTIONS.operation("DeleteExecution")
    functions = {
        ("GET", ""): (read, responses.get),
        ("DELETE", ""): (delete, responses.delete),
        ("POST", "cancel"): (cancel, responses.cancel),
        ("GET", "input_items"): (read, responses.list_input),
    }
    return {
        RESPONSES_METHOD: _create(ResponseParams, responses.create, responses.stream),
        COUNT_METHOD: Method(operation=_REASONING, params=ResponseParams, run=responses.count_input),
        REPLAY_METHOD: Method(
            operation=follow,
            params=ResponseIdParams,
            run=responses.get,
            streaming=Streaming(operation=follow, open=responses.stream),
        ),
        **{
            RESPONSE_METHODS[place]: Method(operation=operation, params=ResponseIdParams, run=run)
            for place, (operation, run) in functions.items()
        },
    }

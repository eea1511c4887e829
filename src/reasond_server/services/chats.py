"""Chats of OpenAI's clients: ReasoningService once more, with the permissions of its RPCs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.http_api.http_calls import Method, Methods, Streaming
from reasond_server.protocols.chat.chat_params import ChatParams, ModelParams
from reasond_server.protocols.chat.completions import Completions
from reasond_server.protocols.chat.model_catalogue import ModelCatalogue
from reasond_server.protocols.chat.openai_endpoint import CHAT_METHOD, MODELS_METHOD, OpenAiEndpoint
from reasond_server.protocols.chat.turn_chats import TurnChats
from reasond_server.services.reasoning import DECLARATION
from reasond_server.services.turns import DECLARATION as TURNS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from reasond_server.http_api.http_app import Interface
    from reasond_server.protocols.chat.model_catalogue import ModelPreset
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.turns.turn_service import TurnService

CHAT_METHODS: Final = (CHAT_METHOD, MODELS_METHOD)


def serve_chats(
    service: ReasoningService, turns: TurnService, *, presets: Mapping[str, ModelPreset], now: Callable[[], datetime]
) -> Interface:
    """Return the OpenAI-compatible interface of `service` and `turns`, with the operator's models.

    Raises:
        SettingsError: a model of the operator cannot work.
    """
    catalogue = ModelCatalogue(strategies=service.strategies(), presets=presets, offers_auto=service.offers_auto)
    chats = TurnChats(service=turns, catalogue=catalogue, operation=TURNS.operation("RunTurn"))
    completions = Completions(service=service, turns=chats, catalogue=catalogue, now=now)
    chat = Method(
        operation=DECLARATION.operation("Reason"),
        params=ChatParams,
        run=completions.create,
        streaming=Streaming(operation=DECLARATION.operation("ReasonIterations"), open=completions.stream),
    )
    models = Method(operation=DECLARATION.operation("ListStrategies"), params=ModelParams, run=completions.list_models)
    return partial(OpenAiEndpoint, Methods([{CHAT_METHOD: chat, MODELS_METHOD: models}]))

"""Builds a backend from its parts: transport, protocol, counter, model."""

from __future__ import annotations

import importlib.util
import logging
import random as randomness
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from reasond_server.errors.base import SettingsError, show
from reasond_server.llm.counting import EstimatingCounter, choose_counter
from reasond_server.llm.counting.tokenizers import TiktokenCounter, ranks_of
from reasond_server.llm.model import ChatRequest
from reasond_server.llm.openai.chat import ChatCompletions, messages_of
from reasond_server.llm.openai.openai_model import OpenAIModel
from reasond_server.llm.openai.responses import ResponsesProtocol
from reasond_server.llm.openai.server_count import ServerCount
from reasond_server.llm.openai.transport import OpenAITransport
from reasond_server.llm.profiles import family_of
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import Any

    from reasond_server.llm.model import Message, TokenCounter
    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.transport import Transport
    from reasond_server.telemetry.observers import BackendObserver

_log = logging.getLogger("reasond.llm.counting")

CounterKind = Literal["auto", "server", "tokenizer", "tiktoken", "estimate", "bytes"]


def build_model(
    options: BackendOptions,
    *,
    counter_kind: CounterKind = "auto",
    tokenizer_file: Path | None = None,
    rank_folders: Sequence[Path] = (),
    monotonic: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
    random: Callable[[], float] = randomness.random,
    observer: BackendObserver = UNOBSERVED,
) -> OpenAIModel:
    """Return the model that `options` describe, without opening a connection.

    The server counts prompts only for the kinds "auto" and "server", and only if the profile has a `count_path`.
    Ranks for tiktoken are searched only in `rank_folders`.

    Raises:
        SettingsError: tokens cannot be counted with `counter_kind`, a package is missing, or the address is invalid.
    """
    counter = _choose_counter(counter_kind, options, tokenizer_file, rank_folders)
    if counter_kind not in {"auto", "server"}:
        options = replace(options, profile=replace(options.profile, count_path=""))
    transport = OpenAITransport(options=options, now=now)
    model = OpenAIModel(
        options=options,
        counter=counter,
        protocol=ResponsesProtocol() if options.protocol == "responses" else ChatCompletions(),
        transport=transport,
        monotonic=monotonic,
        random=random,
        count=_build_server_count(options, transport, monotonic),
        observer=observer,
    )
    observer.watch_breaker(options.name, lambda: model.health.value)
    return model


def _choose_counter(
    kind: CounterKind, options: BackendOptions, tokenizer_file: Path | None, rank_folders: Sequence[Path]
) -> TokenCounter:
    """Return the local counter."""
    if kind == "bytes":
        return choose_counter("bytes", options.model)
    if kind == "estimate":
        return EstimatingCounter()
    if kind == "tokenizer" and tokenizer_file is None:
        raise SettingsError('count = "tokenizer" needs tokenizer_file', remedy="Name a tokenizer.json of the model.")
    if kind == "server" and not options.profile.count_path:
        raise SettingsError(
            f'count = "server", but the profile {show(options.profile.name)} knows no place where it counts',
            remedy='Set count_path in the capabilities of the backend, or count = "auto".',
        )
    counter = choose_counter(
        "auto", options.model, tokenizer=None if kind == "tiktoken" else tokenizer_file, folders=rank_folders
    )
    if kind == "tiktoken" and not isinstance(counter, TiktokenCounter):
        places = ", ".join(map(str, rank_folders)) or "none"
        raise SettingsError(
            f'count = "tiktoken", but there are no ranks of {show(options.model)} on this machine',
            remedy=f"Install reasond-server[tiktoken] and run `reasond tokenizer fetch`, or put the file of ranks into "
            f"one of: {places}.",
        )
    if isinstance(counter, EstimatingCounter) and not options.profile.count_path:
        how = _explain_counting(options.model)
        _log.warning("tokens of %s are estimated; to have them counted, %s", show(options.model), how)
    return counter


def _explain_counting(model: str) -> str:
    """Return how to enable local token counting for `model`, with the command."""
    if name := ranks_of(model):
        return f"run `reasond tokenizer fetch {name}` once and start again"
    if importlib.util.find_spec("tiktoken") is None and family_of(model).startswith("openai"):
        return "run `pip install 'reasond-server[tiktoken]'` and `reasond tokenizer fetch` once and start again"
    return (
        "set tokenizer_file to the model's tokenizer.json (`pip install 'reasond-server[tokenizers]'`), or name the "
        "profile of a server that counts"
    )


def _build_server_count(
    options: BackendOptions, transport: Transport, monotonic: Callable[[], float]
) -> ServerCount | None:
    """Return the counter on the server; None if the profile has no `count_path`."""
    if not options.profile.count_path:
        return None

    def to_wire(messages: Sequence[Message]) -> list[dict[str, Any]]:
        return messages_of(ChatRequest(messages=messages, max_tokens=1), options)

    return ServerCount(
        transport=transport,
        model=options.model,
        count_path=options.profile.count_path,
        wire=to_wire,
        monotonic=monotonic,
    )

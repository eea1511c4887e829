"""Builds a backend from its parts: transport, protocol, counter, model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random as randomness
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from reasond_server.errors.base import SettingsError, show
from reasond_server.errors.model import ContextExhaustedError, ModelError
from reasond_server.llm.counting import EstimatingCounter, choose_counter
from reasond_server.llm.counting.tokenizers import TiktokenCounter, find_ranks
from reasond_server.llm.model import ChatRequest, Message, TokenCounter
from reasond_server.llm.openai.chat import ChatCompletions, build_messages
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.openai_model import OpenAIModel
from reasond_server.llm.openai.responses import ResponsesProtocol
from reasond_server.llm.openai.transport import OpenAITransport
from reasond_server.telemetry.observers import UNOBSERVED, Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from reasond_server.llm.openai.backend_options import BackendOptions

_counting_log = logging.getLogger("reasond.llm.counting")

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
    observer: Observer = UNOBSERVED,
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
        command = f"reasond tokenizer fetch {find_ranks(options.model)}".strip()
        raise SettingsError(
            f'count = "tiktoken", but there are no ranks of {show(options.model)} on this machine',
            remedy=f"Run `{command}`, or put the file of ranks into one of: {places}.",
        )
    if isinstance(counter, EstimatingCounter) and not options.profile.count_path:
        how = _explain_counting(options.model)
        _counting_log.warning("tokens of %s are estimated; to have them counted, %s", show(options.model), how)
    return counter


def _explain_counting(model: str) -> str:
    """Return how to enable local token counting for `model`, with the command."""
    if name := find_ranks(model):
        return f"run `reasond tokenizer fetch {name}` once and start again"
    return (
        "set tokenizer_file to the model's tokenizer.json (`pip install 'reasond-server[tokenizers]'`), or name the "
        "profile of a server that counts"
    )


def _build_server_count(
    options: BackendOptions, transport: OpenAITransport, monotonic: Callable[[], float]
) -> ServerCount | None:
    """Return the counter on the server; None if the profile has no `count_path`."""
    if not options.profile.count_path:
        return None

    def to_wire(messages: Sequence[Message]) -> list[dict[str, Any]]:
        return build_messages(ChatRequest(messages=messages, max_tokens=1), options)

    return ServerCount(
        transport=transport,
        model=options.model,
        count_path=options.profile.count_path,
        wire=to_wire,
        monotonic=monotonic,
    )


_log = logging.getLogger("reasond.llm")

_APPLY_TEMPLATE, _TOKENIZE = "/apply-template", "/tokenize"
_MOST_REMEMBERED = 256
_REST_S = 60.0
_PATIENCE_S = 5.0


class CountTransport(Protocol):
    """The part of `OpenAITransport` that `ServerCount` uses."""

    async def post_json(self, path: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Send `body` to `path`, relative to the server's root, and return the JSON answer."""


@dataclass(eq=False, kw_only=True)
class ServerCount:
    """Asks a server how many tokens a prompt has, and caches the last 256 answers.

    After a failure the server is not asked for a minute, in which every new count is None. Only the first failure is
    logged until the server counts again. A failed count never makes a call fail.

    Args:
        transport: sends the requests.
        model: the server's name of the model.
        count_path: path of the token counter.
        wire: returns messages in the form in which a call sends them.
        monotonic: a clock that never goes back, in seconds.
    """

    transport: CountTransport
    model: str
    count_path: str
    wire: Callable[[Sequence[Message]], list[dict[str, Any]]]
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._remembered: OrderedDict[bytes, int] = OrderedDict()
        self._rests_until: float | None = None

    async def __call__(self, messages: Sequence[Message]) -> int | None:
        """Return the input tokens of a call with `messages`; None if the server does not count them."""
        sent = self.wire(messages)
        key = hashlib.sha256(json.dumps(sent).encode()).digest()
        if key in self._remembered:
            self._remembered.move_to_end(key)
            return self._remembered[key]
        if self._rests_until is not None and self.monotonic() < self._rests_until:
            return None
        try:
            async with asyncio.timeout(2 * _PATIENCE_S):
                tokens = await self._ask(sent)
        except (UpstreamFaultError, ModelError, TimeoutError) as error:
            # vLLM does not count a prompt beyond its window, but the next prompt may be shorter.
            if not (isinstance(error, UpstreamFaultError) and isinstance(error.error, ContextExhaustedError)):
                self._pause(error)
            return None
        self._rests_until = None
        self._remembered[key] = tokens
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return tokens

    async def _ask(self, sent: list[dict[str, Any]]) -> int:
        if self.count_path != _APPLY_TEMPLATE:
            reply = await self.transport.post_json(
                self.count_path, {"model": self.model, "messages": sent}, timeout_s=_PATIENCE_S
            )
            return _read_number(reply, "count", "input_tokens")
        applied = await self.transport.post_json(_APPLY_TEMPLATE, {"messages": sent}, timeout_s=_PATIENCE_S)
        prompt = applied.get("prompt") if isinstance(applied, dict) else None
        if not isinstance(prompt, str):
            raise _build_error()
        # As the server tokenizes a templated prompt: with a first token, and with control tokens as single tokens.
        cut = {"content": prompt, "add_special": True, "parse_special": True}
        reply = await self.transport.post_json(_TOKENIZE, cut, timeout_s=_PATIENCE_S)
        tokens = reply.get("tokens") if isinstance(reply, dict) else None
        if not isinstance(tokens, list):
            raise _build_error()
        return len(tokens)

    def _pause(self, error: Exception) -> None:
        if self._rests_until is None:
            _log.warning(
                "the server does not count tokens; they are counted here",
                extra={"path": self.count_path, "error": type(error).__name__, "reason": str(error)},
            )
        self._rests_until = self.monotonic() + _REST_S


def _read_number(reply: object, *names: str) -> int:
    if isinstance(reply, dict):
        for name in names:
            if isinstance(number := reply.get(name), int) and not isinstance(number, bool) and number >= 0:
                return number
    raise _build_error()


def _build_error() -> ModelError:
    return ModelError("the server's answer has no count")

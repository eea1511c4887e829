"""Exact token counts of prompts, from the server that will answer them.

| `count_path` of the profile | requests | source |
| --- | --- | --- |
| `/apply-template` | it applies the template, then `/tokenize` splits the result | llama.cpp's server |
| any other | it takes the messages and returns `count` or `input_tokens` | vLLM's `/tokenize` |
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from reasond_server.errors.model import ContextExhaustedError, ModelError
from reasond_server.llm.openai.faults import UpstreamFaultError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.model import Message

_log = logging.getLogger("reasond.llm")

_APPLY_TEMPLATE, _TOKENIZE = "/apply-template", "/tokenize"
_MOST_REMEMBERED = 256
_REST_S = 60.0
_PATIENCE_S = 5.0


class CountTransport(Protocol):
    """The part of `Transport` that `ServerCount` uses."""

    async def post_json(self, path: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Send `body` to `path`, relative to the server's root, and return the JSON answer."""
        ...


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
            told = await self.transport.post_json(
                self.count_path, {"model": self.model, "messages": sent}, timeout_s=_PATIENCE_S
            )
            return _read_number(told, "count", "input_tokens")
        applied = await self.transport.post_json(_APPLY_TEMPLATE, {"messages": sent}, timeout_s=_PATIENCE_S)
        prompt = applied.get("prompt") if isinstance(applied, dict) else None
        if not isinstance(prompt, str):
            raise _build_error()
        # As the server tokenizes a templated prompt: with a first token, and with control tokens as single tokens.
        cut = {"content": prompt, "add_special": True, "parse_special": True}
        told = await self.transport.post_json(_TOKENIZE, cut, timeout_s=_PATIENCE_S)
        tokens = told.get("tokens") if isinstance(told, dict) else None
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


def _read_number(told: object, *names: str) -> int:
    if isinstance(told, dict):
        for name in names:
            if isinstance(number := told.get(name), int) and not isinstance(number, bool) and number >= 0:
                return number
    raise _build_error()


def _build_error() -> ModelError:
    return ModelError("the server's answer has no count")

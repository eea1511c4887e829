"""Streams as gateways really send them, beside what the standard of server-sent events says."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from reasond_server.types import TokenChance

_ENDS: Final = frozenset({b"[done]", b'"[done]"', b"done", b"[end]"})
_DATA: Final = b"data:"
# What proxies make of the comments that keep a stream open (mnfst/llm-gateway#2053).
_NOTHING: Final = frozenset({b"ping", b"keep-alive", b"keepalive", b"heartbeat"})
# FastAPI, Cloudflare, vLLM, Bedrock: errors that are called otherwise than `error`.
_CODES: Final = ("code", "status", "status_code", "statusCode")


def is_end(data: bytes) -> bool:
    """Return whether the data of an event says that the stream has ended."""
    return len(data) <= 8 and data.strip().lower() in _ENDS  # noqa: PLR2004 - the longest of them


def split_data(data: bytes) -> Sequence[bytes]:
    """Return the chunks in the data of one event.

    Some gateways separate events by one line feed (anomalyco/opencode#27365), so that the lines of an event are chunks,
    and some put `data:` before data that has it already.
    """
    data = data.strip()
    while data.startswith(_DATA):
        data = data[len(_DATA) :].lstrip()
    if data.startswith(b":") or data.lower() in _NOTHING:
        return ()
    if b"\n" not in data and b"}{" in data and not _is_json(data):
        return _split_values(data.decode(errors="replace"))
    if b"\n" not in data or _is_json(data):
        return (data,)
    return [part for line in data.split(b"\n") for part in split_data(line)]


def _split_values(text: str) -> Sequence[bytes]:
    """Return the chunks of data that has several without anything between them."""
    found, place = [], 0
    decoder = json.JSONDecoder()
    while place < len(text):
        try:
            end = decoder.raw_decode(text, place)[1]
        except (ValueError, RecursionError):
            return (text.encode(),)
        found.append(text[place:end].encode())
        place = end
    return found


def split_body(body: bytes) -> Sequence[bytes]:
    """Return the chunks in a body that is no stream of events: one JSON value, or one for each line."""
    body = body.strip().removeprefix(b"\xef\xbb\xbf").lstrip()
    if _is_json(body):
        return (body,)
    lines = [line.strip() for line in body.split(b"\n") if line.strip()]
    return lines if len(lines) > 1 and all(map(_is_json, lines)) else (body,)


def is_whole(data: bytes) -> bool:
    """Return whether the data of an event is the end of the stream or chunks that are whole JSON."""
    return all(is_end(chunk) or _is_json(chunk) for chunk in split_data(data))


def is_error_report(chunk: Mapping[str, Any]) -> bool:
    """Return whether a chunk without choices reports an error under another name than `error`."""
    if chunk.get("object") == "error" or chunk.get("type") == "error":
        return True
    if chunk.get("detail") or chunk.get("errors"):
        return True
    return isinstance(chunk.get("message"), str) and any(chunk.get(code) for code in _CODES)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


_LEAST: Final = -9999.0
"""What stands for a probability of 0, as OpenAI writes it."""


def read_logprobs(report: object) -> Sequence[TokenChance]:
    """Return the tokens of a member `logprobs`; those that cannot be read are left out."""
    content = report.get("content") if isinstance(report, dict) else None
    return [
        TokenChance(text=one["token"], logprob=_read(one), top=tuple(_list_top(one.get("top_logprobs"))))
        for one in (content if isinstance(content, list) else ())
        if _is_token(one)
    ]


def _list_top(entries: object) -> Sequence[tuple[str, float]]:
    return [(one["token"], _read(one)) for one in (entries if isinstance(entries, list) else ()) if _is_token(one)]


def _is_token(one: object) -> bool:
    return isinstance(one, dict) and isinstance(one.get("token"), str)


def _read(one: dict[str, Any]) -> float:
    """Return a log probability as a number from -9999 to 0."""
    value = one.get("logprob")
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return _LEAST
    return min(0.0, max(_LEAST, float(value)))

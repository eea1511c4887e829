"""Properties that hold for all input bytes; each check takes any bytes and fails on a fault.

The same checks run under hypothesis, over the corpus (both in `make test`) and under atheris (by hand).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from reasond_server.access.token_keys import SigningKey, StaticKeys
from reasond_server.access.token_verifier import TokenRules, TokenVerifier
from reasond_server.access.tokens import TokenMinter, parse_bearer_token
from reasond_server.config import load
from reasond_server.context.replies import TagParser
from reasond_server.context.tags import neutralize, restore
from reasond_server.errors.access import TokenInvalidError
from reasond_server.errors.base import ReasondError, SettingsError
from reasond_server.http_api.http_calls import build_error_object, take_token
from reasond_server.http_api.jsonrpc import dispatch, holds_more_values
from reasond_server.http_api.params import ExecuteParams, read_params
from reasond_server.llm.openai.sse import SseReader
from reasond_server.requests.task_checks import check_task, digest_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
KEY: Final = SigningKey(id="fuzz", secret=b"a secret of the fuzzers, 32 byte")
MINTER: Final = TokenMinter(key=KEY, issuer="reasond", audience="reasond", max_lifetime_s=3600)
RULES: Final = TokenRules(issuer="reasond", audience="reasond", leeway_s=30, max_lifetime_s=3600)
GOOD_TOKEN: Final = MINTER.mint(subject="alice", permissions=["admin"], lifetime_s=3600, now=NOW)
LONGEST_MESSAGE: Final = 100_000
SHORT: Final = 4
LINE_BYTES: Final = 64
_LOOP: Final = asyncio.new_event_loop()


class Calls:
    """Parses the parameters of `reasoning.execute` and checks the task, without running it."""

    async def call(self, method: str, params: dict[str, Any] | list[Any]) -> Mapping[str, Any]:
        del method
        try:
            named = params if isinstance(params, dict) else {"query": params}
            _, arguments = take_token(named, [])
            task = read_params(ExecuteParams, arguments).build_task(None)
            check_task(task, request_id="r")
        except ReasondError as error:
            return {"error": build_error_object(error, call_id="r")}
        assert len(digest_request(task)) == 64
        task.query.encode("utf-8")
        return {"result": {"characters": len(task.query)}}

    def refuse(self, error: ReasondError) -> Mapping[str, Any]:
        return build_error_object(error, call_id="r")


def jsonrpc(data: bytes) -> None:
    """Every body gets well-formed answers or none; values are counted as a parser would count them."""
    answer = _LOOP.run_until_complete(dispatch(data, Calls()))
    if answer is not None:
        found = json.loads(answer)
        for each in found if isinstance(found, list) else [found]:
            assert set(each) in ({"jsonrpc", "result", "id"}, {"jsonrpc", "error", "id"})
            assert each.get("error", {}).get("code") != -32603 or "auth_token" in str(each["error"]), each
    try:
        from_json(data, allow_inf_nan=False)
        pairs = json.loads(data, object_pairs_hook=_Members)
    except (ValueError, RecursionError):
        return
    values = _values_in(pairs)
    assert not holds_more_values(data, values)
    assert values == 0 or holds_more_values(data, values - 1)


class _Members(list[Any]):
    """The members of an object, with duplicate names kept."""


def _values_in(node: object) -> int:
    if isinstance(node, _Members):
        return len(node) + sum(_values_in(value) for _, value in node)
    return len(node) + sum(map(_values_in, node)) if isinstance(node, list) else 0


def tags(data: bytes) -> None:
    """A reply is parsed the same however it is cut; a neutralised text opens no tag and can be restored."""
    size, text = 1 + data[0] % 7 if data else 1, data[1:].decode("utf-8", "replace")
    whole, cut = TagParser(), TagParser()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    shown = [*chain.from_iterable(map(cut.feed, pieces)), *cut.close(is_stop=True)]
    whole.feed(text)
    whole.close(is_stop=True)
    assert whole.result == cut.result
    parsed = whole.result
    outside = "".join(each.text for each in shown if not each.is_thinking)
    kept, thought = parsed.text + parsed.content, "".join(each.text for each in shown if each.is_thinking)
    if cut.has_taken_back:
        # A lone </think> makes reasoning of text that was returned before it.
        assert _is_subsequence(kept, outside)
        assert len(parsed.thinking) >= len(thought)
    elif "```" in outside or "~~~" in outside:
        # A fence around the reply, and a closing tag in a fence that was never closed, are known only at its end.
        assert _is_subsequence(kept, outside)
        assert parsed.thinking.startswith(thought)
    else:
        assert (kept, parsed.thinking) == (outside, thought)
    neutral = neutralize(text)
    assert neutralize(neutral) == neutral
    reader = TagParser()
    reader.feed(neutral)
    reader.close(is_stop=True)
    assert reader.result.kind is None
    assert not reader.result.thinking
    if not any(sign in text for sign in ("&lt;", "&#91;", "\uff1c", "\ufe64")):
        assert restore(neutral) == text


def _is_subsequence(part: str, whole: str) -> bool:
    signs = iter(whole)
    return all(sign in signs for sign in part)


def sse(data: bytes) -> None:
    """Events are the same however the bytes are cut; the only error is a line that is too long."""
    size, rest = 1 + data[0] % 9 if data else 1, data[1:]
    assert _events([rest]) == _events([rest[at : at + size] for at in range(0, len(rest), size)])


def _events(pieces: list[bytes]) -> tuple[list[Any], bool]:
    reader, found = SseReader(max_line_bytes=LINE_BYTES), []
    for piece in pieces:
        for event in reader.feed(piece):
            assert b"\r" not in event.data
            found.append(event)
        if reader.fault is not None:
            return found, True
    return found, False


def token_header(data: bytes) -> None:
    """Only a valid signature is accepted, for its own subject; no refusal quotes the input."""
    text = data.decode("latin-1")
    verifier = TokenVerifier(keys=StaticKeys([KEY.verifying_key]), rules=RULES, now=lambda: NOW)
    refusal = ""
    try:
        token = parse_bearer_token(text.split("\n"))
        principal = _LOOP.run_until_complete(verifier.verify(token))
    except TokenInvalidError as error:
        refusal = error.full_message
    else:
        assert principal.subject == "alice"
        assert token.rpartition(".")[0] == GOOD_TOKEN.rpartition(".")[0]
    secret = text.partition(" ")[2]
    assert len(secret) <= SHORT or secret not in refusal or secret in _OUR_WORDS


_OUR_WORDS: Final = (
    "Authentication failed: the authorization header is not 'Bearer <token>'. Send 'authorization: Bearer <token>'."
    " more than one authorization header exactly Token is not a JSON Web Token header malformed signature does match"
)
_FILE: Final = Path(tempfile.gettempdir()) / f"reasond-fuzz-{os.getpid()}.toml"
_VARIABLES: Final = ("REASOND__SERVER__GRPC_ADDRESS", "REASOND__LLM__MODEL", "REASOND__AUTH__KEYS", "REASOND__STORE")


def settings(data: bytes) -> None:
    """A configuration is read, or refused with one of our errors, which is short."""
    content, mark, value = data.partition(b"\0")
    text = value.decode("utf-8", "surrogateescape").replace("\0", "")
    environ = {_VARIABLES[len(content) % len(_VARIABLES)]: text} if mark else {}
    _FILE.write_bytes(content)
    refusal = ""
    try:
        loaded = load(_FILE, environ)
    except SettingsError as error:
        refusal = error.full_message
    else:
        assert loaded.file == _FILE
    finally:
        _FILE.unlink()
    assert len(refusal.encode("utf-8", "surrogateescape")) < LONGEST_MESSAGE


CHECKS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "jsonrpc": jsonrpc,
    "tags": tags,
    "sse": sse,
    "token_header": token_header,
    "settings": settings,
}

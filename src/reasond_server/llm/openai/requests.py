"""Requests as the `openai` package writes them: address, Azure deployment, credentials, headers. None is sent here."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic_core import to_json

from reasond_server.errors import ModelProtocolError, SettingsError, shown
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.telemetry.propagation import outgoing_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openai import AsyncOpenAI

    from reasond_server.llm.openai.options import BackendOptions

_OF_ONE_CALL = frozenset({"content-length", "connection", "traceparent", "tracestate", "baggage"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRequest:
    """A POST request but for its body and for what belongs to one call: length, connection, trace.

    `url` is encoded and without credentials, the names of `headers` are in lower case.
    """

    url: str
    headers: dict[str, str]

    def headers_now(self, *, keeps: bool) -> dict[str, str]:
        """Return all headers of a call that is made now; `keeps` asks the server to keep the connection."""
        return {**self.headers, "connection": "keep-alive" if keeps else "close", **outgoing_headers()}


class RequestWriter:
    """Has the package write the first request to each address; later ones differ in nothing that it decides.

    So a key stays what it was when the backend was made: a callable for keys, or a provider of Azure tokens, which the
    package would ask for every request, cannot be configured.

    Raises:
        SettingsError: the package is not installed, or refuses the address.
    """

    def __init__(self, *, options: BackendOptions) -> None:
        self._options = options
        self._client = _client(options)
        self._written: dict[str, WrittenRequest] = {}

    async def written(self, path: str, body: dict[str, Any]) -> WrittenRequest:
        """Return the request to `path`; of `body` only the name of the model matters, which Azure has in addresses.

        Raises:
            UpstreamFaultError: the package finds no request for the address.
        """
        found = self._written.get(path)
        if found is None:
            try:
                found = await self._first(path, body)
            except Exception:  # noqa: BLE001 - whatever it objects to, the address is at fault
                raise _unwritable(self._options) from None
            self._written[path] = found
        return found

    async def aclose(self) -> None:
        """Let go of the package's client."""
        await self._client.close()

    async def _first(self, path: str, body: dict[str, Any]) -> WrittenRequest:
        import openai  # noqa: PLC0415 - only when used
        from httpx2 import URL, Response  # noqa: PLC0415 - only when used

        # openai refuses to send what carries no key, unless each request says so.
        headers: dict[str, Any] = {} if self._options.api_key else {"Authorization": openai.Omit()}
        how: dict[str, Any] = {"cast_to": Response, "options": {"headers": headers}}
        answer: Any = await self._client.post(self._address(path), body=body, **how)
        request = answer.request
        url: URL = request.url
        return WrittenRequest(
            url=str(url.copy_with(username="", password="")),
            headers={name: value for name, value in request.headers.items() if name not in _OF_ONE_CALL},
        )

    def _address(self, path: str) -> str:
        """Return where `path` is: whole, but for Azure's, which the package puts the deployment into."""
        if path.startswith("/"):
            parts = urlsplit(self._options.base_url)
            return f"{parts.scheme}://{parts.netloc}{path}"
        if self._options.azure_api_version:
            return f"/{path}"
        return f"{self._options.base_url.rstrip('/')}/{path}"


def encoded(options: BackendOptions, body: dict[str, Any], *, messages: Sequence[bytes] = ()) -> bytes:
    """Return `body` as JSON in UTF-8; of characters that UTF-8 does not have, "?". `messages` are JSON already.

    Raises:
        UpstreamFaultError: it has no form in JSON, such as a number that is none in a schema of the caller.
    """
    content = b""
    with suppress(ValueError):
        content = to_json(body)
    if not content or b"NaN" in content or b"Infinity" in content:
        content = _encoded_with_care(options, body)
    # There is always something else in a body with messages.
    return b'{"messages":[%s],%s' % (b",".join(messages), content[1:]) if messages else content


def _encoded_with_care(options: BackendOptions, body: dict[str, Any]) -> bytes:
    """Do the same, three times as slowly, for what pydantic's writer does not take, or writes though JSON has no form.

    Such are lone halves of characters, deep nesting, and numbers that are none.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        error = ModelProtocolError(
            f"The request to the model backend {shown(options.name)} cannot be written as JSON",
            remedy="Check the JSON Schemas of the request: NaN and infinity have no form in JSON.",
        )
        raise UpstreamFaultError(error) from None
    return text.encode("utf-8", "replace")


def _unwritable(options: BackendOptions) -> UpstreamFaultError:
    return faults.unreachable(options, "base_url is no address that requests can be made for", is_retryable=False)


def _client(options: BackendOptions) -> AsyncOpenAI:
    """Return the package's client, over a transport that sends nothing."""
    try:
        import httpx2  # noqa: PLC0415 - only when used
        import openai  # noqa: PLC0415 - only when used
    except ImportError:
        raise SettingsError(
            "The provider 'openai' needs the openai package, which is not installed",
            remedy="Install reasond-server again: its dependencies are not complete.",
        ) from None

    async def unsent(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(204, request=request)

    try:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(unsent), trust_env=False)
        shared: dict[str, Any] = {
            "max_retries": 0,
            "timeout": None,
            "http_client": http,
            "api_key": options.api_key or "none",
            "default_headers": _headers(options, omit=openai.Omit()),
        }
        if options.azure_api_version:
            return openai.AsyncAzureOpenAI(
                azure_endpoint=options.base_url, api_version=options.azure_api_version, **shared
            )
        return openai.AsyncOpenAI(base_url=options.base_url, **shared)
    except Exception:  # noqa: BLE001 - whatever it objects to, the address is at fault
        raise SettingsError(
            f"The address {shown(options.base_url)} of model backend {shown(options.name)} is not usable",
            remedy="Set base_url to an address such as https://host/v1.",
        ) from None


def _headers(options: BackendOptions, *, omit: Any) -> dict[str, Any]:  # noqa: ANN401 - a mark of openai's
    """Return the headers that differ from what openai's client sends by itself."""
    headers: dict[str, Any] = {"accept": "text/event-stream, application/json", "accept-encoding": "identity"}
    if not options.api_key:
        headers["Authorization"] = omit
    host = urlsplit(options.base_url).hostname or ""
    if host != "api.openai.com":
        headers |= {"OpenAI-Organization": omit, "OpenAI-Project": omit}
    return headers

"""The built-in tool that fetches a text from hosts that the operator allows."""

from __future__ import annotations

import codecs
import fnmatch
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final
from urllib.parse import urljoin

from pydantic import Field

from reasond_server.errors.base import show
from reasond_server.telemetry.propagation import build_outgoing_headers
from reasond_server.tools.address_checks import MAX_URL_CHARACTERS, AddressPolicy, RefusedAddressError, Target
from reasond_server.tools.tool import (
    ArgumentsRefusedError,
    ModelledTool,
    ToolArguments,
    ToolContext,
    ToolFailedError,
)
from reasond_server.tools.vetted_requests import describe_cause, find_failures, request_vetted
from reasond_server.types.values import value

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    import aiohttp

    from reasond_server.tools.address_checks import Resolve

_MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {"Accept": "text/*, application/json, */*;q=0.1"}
_BODY_OVERHEAD_BYTES: Final = 65_536


@value
class FetchLimits:
    """Limits of a fetch: its time with all redirects, the bytes that are read of a body, and the media types."""

    timeout_s: float = 10.0
    max_bytes: int = 1_048_576
    content_types: Sequence[str] = ("text/*", "application/json")


class HttpGetArguments(ToolArguments):
    """Arguments of a fetch."""

    url: Annotated[
        str, Field(min_length=1, max_length=MAX_URL_CHARACTERS, description="The whole URL, such as https://host/path.")
    ]


class HttpGet(ModelledTool[HttpGetArguments]):
    """Fetches with GET, without cookies or credentials; each redirect is vetted like the first URL.

    Args:
        policy: decides which hosts and addresses may be reached.
        limits: time, bytes and media types.
        resolve: returns the addresses of a host; the default is the system's resolver.
        trusted: the accepted certificates; the default is those that the system trusts.
    """

    name: ClassVar[str] = "http_get"
    description: ClassVar[str] = "Fetches a text document over HTTP GET and returns its status and text."
    arguments_type: ClassVar[type[ToolArguments]] = HttpGetArguments
    is_idempotent = True

    def __init__(
        self,
        *,
        policy: AddressPolicy,
        limits: FetchLimits,
        resolve: Resolve | None = None,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._resolve = resolve
        self._trusted = trusted
        self.timeout_s = limits.timeout_s
        # JSON may write one byte as six characters.
        self.max_output_bytes = 6 * limits.max_bytes + _BODY_OVERHEAD_BYTES

    async def call(self, arguments: HttpGetArguments, context: ToolContext) -> object:  # noqa: ARG002 - the tool's form
        """Return status, final URL, media type and text.

        Raises:
            ArgumentsRefusedError: the policy refuses the URL.
            ToolFailedError: the fetch failed, or the URL redirects to one that the policy refuses.
        """
        url = arguments.url
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                target = self._policy.vet_url(url)
                answer = await self._fetch(target)
                if isinstance(answer, dict):
                    return answer
                url = urljoin(target.url, answer)
        except RefusedAddressError as error:
            kind = ArgumentsRefusedError if url == arguments.url else ToolFailedError
            raise kind(str(error)) from None
        except find_failures() as error:
            raise ToolFailedError(f"{show(url)} could not be fetched: {describe_cause(error)}") from None
        raise ToolFailedError(f"{show(arguments.url)} was redirected more than {_MAX_REDIRECTS} times")

    async def _fetch(self, target: Target) -> dict[str, Any] | str:
        """Return the document, or the address of a redirect."""
        async with request_vetted(
            target,
            self._policy,
            headers={**_HEADERS, **build_outgoing_headers()},
            timeout_s=self._limits.timeout_s,
            resolve=self._resolve,
            trusted=self._trusted,
        ) as response:
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location:
                return location
            return await self._read_document(target, response)

    async def _read_document(self, target: Target, response: aiohttp.ClientResponse) -> dict[str, Any]:
        kind, encoding = response.content_type.lower(), response.headers.get("Content-Encoding", "identity").lower()
        if not any(fnmatch.fnmatchcase(kind, allowed) for allowed in self._limits.content_types):
            allowed = ", ".join(self._limits.content_types)
            raise ToolFailedError(f"the document is {show(kind)}, which is not fetched; allowed are {allowed}")
        if encoding != "identity":
            raise ToolFailedError("the server sent the document compressed, which was not asked for")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._limits.max_bytes:
                break
        text = bytes(body[: self._limits.max_bytes]).decode(_find_codec(response.charset), "replace")
        document = {"status": response.status, "url": target.url, "content_type": kind, "text": text}
        return document | ({"is_cut": True} if len(body) > self._limits.max_bytes else {})


def _find_codec(charset: str | None) -> str:
    try:
        return codecs.lookup(charset).name if charset and charset.lower() in _TEXT_CODECS else "utf-8"
    except LookupError:
        return "utf-8"


# Python also has codecs that are slow or do not decode text, such as zlib.
_TEXT_CODECS: Final = frozenset(
    (
        *("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin1", "iso-8859-15", "windows-1252", "utf-16"),
        *("windows-1251", "iso-8859-2", "shift_jis", "euc-jp", "euc-kr", "gb2312", "gbk", "gb18030", "big5", "koi8-r"),
    )
)

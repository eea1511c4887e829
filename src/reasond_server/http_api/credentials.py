"""Where a caller's token comes from: `params.auth_token` or the Authorization header; kept nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reasond_server.access.tokens import parse_bearer_token
from reasond_server.errors import TokenInvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def take_token(params: Mapping[str, Any], authorization: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the token of a call, empty where there is none, and `params` without it.

    `authorization` are the values of that header.

    Raises:
        TokenInvalidError: there are several that differ, or one that is not a token at all.
    """
    if "auth_token" not in params:
        return parse_bearer_token(authorization), params
    rest = {name: value for name, value in params.items() if name != "auth_token"}
    given = params["auth_token"]
    if given is not None and not isinstance(given, str):
        raise TokenInvalidError("Authentication failed: 'auth_token' must be a string")
    from_header = parse_bearer_token(authorization)
    if given and from_header and given != from_header:
        raise TokenInvalidError(
            "Authentication failed: 'auth_token' in params and the Authorization header differ",
            remedy="Send one of them, or the same token in both.",
        )
    return given or from_header, rest

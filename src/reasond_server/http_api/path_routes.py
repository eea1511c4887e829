"""Addresses by the method of HTTP and a template of the path, such as `/api/v1/executions/{execution_id}:cancel`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote

from reasond_server.http_api.exchange import Exchange, RefusalError, Scope

TargetT = TypeVar("TargetT")


class PathRoutes(Generic[TargetT]):
    """Finds what an address stands for; `hint` is the advice for requests of unknown paths."""

    def __init__(self, routes: Iterable[tuple[str, str, TargetT]], *, hint: str) -> None:
        # What has a verb at its end goes before a field that could hold it.
        ordered = sorted(routes, key=lambda route: ":" not in route[1])
        self._routes = [(_compile(template), verb, template, target) for verb, template, target in ordered]
        self._hint = hint

    def find(self, scope: Scope, exchange: Exchange) -> tuple[TargetT, dict[str, str]]:
        """Return what the address of a request stands for, and the fields in its path; its template is its route.

        Raises:
            RefusalError: there is nothing at the path, or it takes other methods.
        """
        # Undecoded: a field may hold a slash.
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        found = [
            (match, verb, template, target)
            for pattern, verb, template, target in self._routes
            if (match := pattern.fullmatch(path)) is not None
        ]
        if not found:
            raise RefusalError(404, f"there is nothing at this address; {self._hint}")
        exchange.route = found[0][2]
        for match, verb, template, target in found:
            if verb == scope["method"]:
                exchange.route = template
                return target, {name: unquote(text) for name, text in match.groupdict().items()}
        allowed = ", ".join(dict.fromkeys(verb for _, verb, *_ in found))
        raise RefusalError(405, f"this address takes {allowed} only", headers={"allow": allowed})


def _compile(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))

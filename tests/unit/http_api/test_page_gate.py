"""The page where proxies ask whether a token is good."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from reasond_server.http_api.page_gate import CHECK_PATH
from tests.unit.http_api.parts import Site, serve

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", [CHECK_PATH, f"{CHECK_PATH}/reasond.v1.ReasoningService/Reason"])
async def test_a_good_token_is_admitted_with_the_method_and_the_path_of_any_request(method: str, path: str) -> None:
    async with AsyncExitStack() as stack:
        site = await serve(stack)
        bearer = {"authorization": f"Bearer {site.token('metrics:read', tenant='acme')}"}
        answer = await site.client.request(method, path, headers=bearer)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        if method != "HEAD":
            assert answer.json() == {"subject": "alice", "tenant": "acme"}


@pytest.mark.parametrize(
    "make_headers",  # made in the test: a token made at collection may have expired
    [dict, lambda: {"authorization": "Bearer nonsense"}, lambda: {"authorization": f"Basic {Site.token()}"}],
)
async def test_anything_else_is_refused_and_is_a_line_of_the_audit_log(
    make_headers: Callable[[], dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        site = await serve(stack)
        with caplog.at_level(logging.INFO, logger="reasond.audit"):
            answer = await site.client.get(CHECK_PATH, headers=make_headers())
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        told = [vars(line)["operation"] for line in caplog.records if line.name == "reasond.audit"]
        assert told == ["CheckToken"]


async def test_a_longer_name_is_another_address() -> None:
    async with AsyncExitStack() as stack:
        site = await serve(stack)
        bearer = {"authorization": f"Bearer {site.token()}"}
        assert (await site.client.get(f"{CHECK_PATH}ed", headers=bearer)).status_code == 404

"""Figures that pages copy from the code agree with the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from reasond_server.config import Settings
from reasond_server.http_api import http_app as app
from reasond_server.http_api import jsonrpc
from reasond_server.http_api.connections import ConnectionLimits
from reasond_server.http_api.http_app import HttpLimits

DEPLOYMENT = (Path(__file__).parents[2] / "docs" / "operations" / "deployment.md").read_text(encoding="utf-8")
MEBI = 1024 * 1024
SERVER = Settings().server
LIMITS, CONNECTION = HttpLimits(), ConnectionLimits()


@pytest.mark.parametrize(
    ("what", "bound"),
    [
        ("one body", f"`max_http_body_bytes` ({SERVER.max_http_body_bytes // MEBI} MiB)"),
        ("all bodies in progress together", f"{app._HELD_BODIES} times that"),
        ("requests in progress", f"{LIMITS.max_requests:,}"),
        ("time for a body", f"{LIMITS.body_timeout_s:g} s"),
        ("time for headers", f"{CONNECTION.header_timeout_s:g} s"),
        ("size of headers", f"{CONNECTION.max_header_bytes // 1024} KiB"),
        ("time without a request on an open connection", f"{CONNECTION.keep_alive_s} s"),
        ("time in which a client reads nothing of its answer", f"{CONNECTION.write_timeout_s:g} s"),
        ("nesting of a body", f"{jsonrpc.MAX_DEPTH} levels"),
        ("values in a body, at all levels together", f"{jsonrpc.MAX_VALUES:,}"),
        ("calls in a batch", f"`max_jsonrpc_batch` ({SERVER.max_jsonrpc_batch})"),
        ("answer of one call", f"{jsonrpc.MAX_ANSWER_BYTES // MEBI} MiB"),
    ],
)
def test_the_limits_of_http_are_those_of_the_code(what: str, bound: str) -> None:
    assert f"| {what} | {bound} |" in DEPLOYMENT

"""Envoy reads our load reports: by the policy of the documentation a busy server gets a lower weight."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond_server.testing import FunctionModel, Reply, running_server
from tests.contract.test_followers import ENVIRON, OWNER
from tests.mesh.proxies import LIMIT_S, ROOT, Backends, running_proxy

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.llm.model import ChatRequest

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "operations" / "service-mesh.md"
[POLICY] = re.findall(r"^```yaml\n(load_balancing_policy:.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
LONG = "a long question"
SETTINGS = {
    **ENVIRON,
    "REASOND__SERVER__LOAD_REPORTS": "both",
    "REASOND__SERVER__LOAD_REPORT_INTERVAL_S": "0.1",
    "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "4",
}


def reply(request: ChatRequest) -> Reply:
    is_long = LONG in request.messages[-1].content
    return Reply(text="<answer>42</answer>", hold=asyncio.Event() if is_long else None)


def read_weights(admin: str) -> dict[str, int]:
    """Return the weight of each server of the cluster for gRPC."""
    with urllib.request.urlopen(f"http://{admin}/clusters") as answer:
        found = re.findall(r"^grpc::(.+)::weight::(\d+)$", answer.read().decode(), re.MULTILINE)
    return {host: int(weight) for host, weight in found}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_envoy_weighs_servers_by_their_load(tmp_path: Path, *, is_stream: bool) -> None:
    policy = POLICY.strip().replace("\n", "\n" + 6 * " ").replace("blackout_period: 10s", "blackout_period: 0s")
    if not is_stream:
        policy = policy.replace("enable_oob_load_report: true", "enable_oob_load_report: false")
    model = FunctionModel(reply)
    async with (
        running_server(model=model, environ=SETTINGS) as busy,
        running_server(model=model, environ=SETTINGS) as idle,
        reasond.AsyncClient(busy.grpc, token=OWNER) as owner,
    ):
        held = [asyncio.create_task(owner.reason(LONG, timeout_s=LIMIT_S)) for _ in range(3)]
        http = [each.http.removeprefix("http://") for each in (busy, idle)]
        behind = Backends(grpc=[busy.grpc, idle.grpc], http=http)
        cluster = "- name: grpc\n      type: STRICT_DNS\n      "
        replacements = {f"{cluster}lb_policy: LEAST_REQUEST": f"{cluster}{policy}"}
        async with (
            running_proxy("envoy", tmp_path, behind, replacements=replacements) as proxy,
            reasond.AsyncClient(proxy.grpc, token=OWNER) as client,
            asyncio.timeout(LIMIT_S),
        ):
            weights: dict[str, int] = {}
            while not weights.get(idle.grpc, 1) > 3 * weights.get(busy.grpc, 1):
                await asyncio.gather(*(client.reason("What is 6 times 7?", timeout_s=LIMIT_S) for _ in range(4)))
                weights = await asyncio.to_thread(read_weights, proxy.admin)
        for each in held:
            each.cancel()

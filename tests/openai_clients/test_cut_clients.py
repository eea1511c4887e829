"""OpenAI's own client, unmodified, whose connections are cut again and again: nothing is lost, doubled or paid twice.

By hand: `CLIENT_CUTS=1000 pytest -n0 -s tests/openai_clients/test_cut_clients.py`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.clients.cutting_proxy import CutPlan, CuttingProxy
from tests.clients.cutting_proxy import listening as listening_proxy
from tests.faults.turn_servers import read_count
from tests.openai_clients.client_environments import HERE, find_python
from tests.openai_clients.test_openai_clients import see, serve

if TYPE_CHECKING:
    from pathlib import Path

# The first run installs the clients.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400)]

CUTS = read_count("CLIENT_CUTS", 20)
QUESTIONS = CUTS // 4
SEED = 7


async def test_a_client_whose_connections_are_cut_gets_the_whole_and_pays_once(tmp_path: Path) -> None:
    python = await asyncio.to_thread(find_python)
    async with serve(tmp_path) as (listening, model):
        proxy = CuttingProxy(upstream=listening.http.removeprefix("http://"), cuts=CutPlan(seed=SEED, left=CUTS))
        async with listening_proxy(proxy):
            command = [str(python), str(HERE / "python_cut.py"), f"{listening.http}/v1", str(QUESTIONS)]
            seen = await see(command, replace(listening, http=f"http://{proxy.address}"), model)
    assert seen == {"openai": {"wrong": [], "texts": 1}}
    assert proxy.cuts_made >= QUESTIONS
    assert model.calls == 2 * QUESTIONS
    sys.stdout.write(f"{proxy.cuts_made} cuts, {2 * QUESTIONS} responses, {model.calls} model calls\n")

"""Unmodified clients whose connections are cut and whose servers are killed: nothing is lost, doubled or paid twice.

By hand: `CLIENT_CUTS=1000 CLIENT_KILLS=100 pytest -n0 -s tests/openai_clients/test_cut_clients.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.cli.commands.keys import create
from tests.clients.cutting_proxy import CutPlan, CuttingProxy
from tests.clients.cutting_proxy import listening as listening_proxy
from tests.engines.served import serving
from tests.faults.test_response_cuts import Site
from tests.faults.turn_servers import read_count
from tests.faults.upstream import upstream
from tests.openai_clients.client_environments import HERE, find_python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# The first run installs the clients.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400)]

CUTS = read_count("CLIENT_CUTS", 20)
KILLS = read_count("CLIENT_KILLS", 2)
WAYS = 4
QUESTIONS_OF_A_KILL = 4
SEED = 7
PATIENCE_S = 600.0


@asynccontextmanager
async def asking(questions: int, address: str, token: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Run the program of the clients; yield its lines."""
    python = await asyncio.to_thread(find_python)
    command = [str(python), str(HERE / "python_cut.py"), str(questions), f"http://{address}/v1", token]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines, complaints = process.stdout, asyncio.create_task(process.stderr.read())

    async def read() -> AsyncIterator[dict[str, Any]]:
        async for line in lines:
            yield json.loads(line)
        assert await process.wait() == 0, (await complaints).decode()

    try:
        yield read()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await complaints


@pytest.mark.parametrize("fault", ["cuts", "kills"])
async def test_clients_get_the_whole_and_pay_once(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json")}
    create(subject="clients", permission=["admin"], config=None, environ={"REASOND_CONFIG": "/dev/null", **keys})
    token = capsys.readouterr().out.strip()
    site, seen = Site(), Counter[str]()
    cuts, kills = (CUTS, 0) if fault == "cuts" else (0, KILLS)
    async with upstream(site.answer) as model, AsyncExitStack() as stack:
        environ = {
            "OPENAI_API_KEY": "none",
            "REASOND__STORE__URL": f"sqlite:///{tmp_path / 'reasond.db'}",
            "REASOND__STORE__LEASE_S": "3",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": model.address,
            "REASOND__LLM__MODEL": "fake",
            **keys,
        }
        server = await stack.enter_async_context(serving(tmp_path, "server", environ))
        proxy = CuttingProxy(upstream=server.http, cuts=CutPlan(seed=SEED, left=cuts))

        async def kill_now_and_then() -> None:
            """Kill the server while an answer is written, and start another in its place."""
            nonlocal server
            for number in range(kills):
                begun = site.kills * QUESTIONS_OF_A_KILL + number % WAYS
                while len(site.calls) <= begun:  # noqa: ASYNC110 - the model tells nobody
                    await asyncio.sleep(0.01)
                await asyncio.sleep(number % 7 / 20)
                site.kills += 1
                proxy.move("")
                server.process.kill()
                server.process.wait()
                server = await stack.enter_async_context(serving(tmp_path, f"again{number}", environ))
                proxy.move(server.http)

        questions = max(cuts // 3, kills * QUESTIONS_OF_A_KILL + WAYS)
        await stack.enter_async_context(listening_proxy(proxy))
        lines = await stack.enter_async_context(asking(questions, proxy.address, token))
        before = 0
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_now_and_then())
            async for told in lines:
                assert told["is_right"], told
                again = site.calls[told["question"]] - 1
                # Only a call that was under way at a kill is made again.
                assert 0 <= again <= site.kills - before, told
                before = site.kills
                seen += Counter({told["client"]: 1, "again": again, "lost": told.get("lost", 0)})
    assert (proxy.cuts_made > 0, site.kills) == (bool(cuts), kills)
    counted = {name: count for name, count in seen.items() if count}
    sys.stdout.write(f"{proxy.cuts_made} cuts, {site.kills} SIGKILLs, 0 lost, doubled or paid twice: {counted}\n")

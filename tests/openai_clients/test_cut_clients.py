"""Unmodified clients whose connections are cut and whose servers are killed: nothing is lost, doubled or paid twice.

By hand: `CLIENT_CUTS=1000 CLIENT_KILLS=100 pytest -n0 -s tests/openai_clients/test_cut_clients.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.cli.commands.keys import create
from tests.clients.cutting_proxy import CutPlan, CuttingProxy
from tests.clients.cutting_proxy import listening as listening_proxy
from tests.faults.test_response_cuts import Site, make_store
from tests.faults.turn_servers import read_count
from tests.faults.upstream import upstream
from tests.openai_clients.client_environments import HERE, find_python

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.engines.served import Served

# The first run installs the clients.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400)]

CUTS = read_count("CLIENT_CUTS", 20)
KILLS = read_count("CLIENT_KILLS", 2)
WAYS = 5
"""The program asks in as many ways, in turn; of so many questions one meets a kill."""
SEED = 7
LONG_CUT = (1_500, 20_000)
"""Bytes of some answers: else one question that is asked again from its start would take most of the cuts."""


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


async def kill_now_and_then(
    site: Site, proxy: CuttingProxy, start: Callable[[], Awaitable[Served]], kills: int
) -> None:
    """Kill the first server while an answer is written, and go on with another one: there is one, or it is started."""
    for number in range(kills):
        begun = site.kills * WAYS + number % WAYS
        while len(site.calls) <= begun:  # noqa: ASYNC110 - the model tells nobody
            await asyncio.sleep(0.01)
        await asyncio.sleep(number % 7 / 20)
        proxy.move("")
        site.kill(site.running.pop(0))
        if site.running:
            proxy.move(site.running[0].http)
        site.running.append(await start())
        proxy.move(site.running[0].http)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("fault", ["cuts", "kills"])
async def test_clients_get_the_whole_and_pay_once(
    fault: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json")}
    create(subject="clients", permission=["admin"], config=None, environ={"REASOND_CONFIG": "/dev/null", **keys})
    token = capsys.readouterr().out.strip()
    site, seen = Site(store_url=make_store(kind, tmp_path, request)), Counter[str]()
    cuts, kills = (CUTS, 0) if fault == "cuts" else (0, KILLS)
    async with upstream(site.answer) as model, AsyncExitStack() as stack:
        environ = {
            "REASOND__STORE__LEASE_S": "3",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": model.address,
            "REASOND__LLM__MODEL": "fake",
            **keys,
        }
        start = partial(site.start, stack, tmp_path, environ)
        site.running += [await start() for _ in range(1 if kind == "sqlite" else 2)]
        plan = CutPlan(seed=SEED, left=cuts, long_cut=LONG_CUT)
        proxy = CuttingProxy(upstream=site.running[0].http, cuts=plan)
        questions = max(cuts // 2, (kills + 1) * WAYS)
        await stack.enter_async_context(listening_proxy(proxy))
        lines = await stack.enter_async_context(asking(questions, proxy.address, token))
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_now_and_then(site, proxy, start, kills))
            async for told in lines:
                assert told["is_right"], told
                site.wanted[told["question"]] = 1
                seen += Counter({name: told.get(name, 0) for name in ("lost", "resumed")} | {told["client"]: 1})
        again = site.check_payments()
    assert (proxy.cuts_made > 0, site.kills) == (bool(cuts), kills)
    sys.stdout.write(
        f"{kind}: {proxy.cuts_made} cuts, {site.kills} SIGKILLs, {dict(+seen)}: 0 lost, doubled or reordered; "
        f"{again} calls had no record at a kill and were made again\n"
    )

"""Runs scenarios: servers, a proxy for each scenario, and the driver of one client."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import reasond
from tests.clients.cutting_proxy import CutPlan, CuttingProxy, listening
from tests.clients.scenario_servers import ScenarioServers, mint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.clients.drivers import DriverProgram
    from tests.clients.scenarios import Scenario

PATIENCE_S = 120.0


class Driver:
    """A running driver: takes requests and gives their answers."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            AssertionError: the driver ended, or gave no answer in time.
        """
        assert self._process.stdin is not None
        answer = self._answers[request["name"]] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            await self._process.stdin.drain()
            return await asyncio.wait_for(answer, PATIENCE_S)
        except (TimeoutError, ConnectionError):
            raise AssertionError(f"no answer to {request['name']}; the driver wrote:\n{self.read_log()}") from None

    async def read_answers(self) -> None:
        """Hand out answers until the driver ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            self._answers[told["name"]].set_result(told)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(AssertionError(f"the driver ended; it wrote:\n{self.read_log()}"))

    def read_log(self) -> str:
        """Return the end of what the driver wrote to its standard error."""
        return self._log.read_text("utf-8", "replace")[-4000:]

    async def end(self) -> int:
        """End the input, and return the exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await asyncio.wait_for(self._process.wait(), PATIENCE_S)


@asynccontextmanager
async def running_driver(program: DriverProgram, folder: Path) -> AsyncIterator[Driver]:
    """Run a driver while the context lasts; at the end it must end by itself with exit code 0."""
    log = folder / "driver.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *program.run,
            cwd=program.folder,
            env={**os.environ, **dict(program.environ)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=2**20,
        )
    driver = Driver(process, log)
    reading = asyncio.create_task(driver.read_answers())
    try:
        yield driver
        code = await driver.end()
        assert code == 0, f"the driver ended with {code}:\n{driver.read_log()}"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def run_scenarios(
    program: DriverProgram, groups: Sequence[Sequence[Scenario]], folder: Path
) -> dict[str, list[str]]:
    """Run groups of scenarios one after the other, those of a group side by side; return what is wrong with each."""
    problems: dict[str, list[str]] = {}
    every = [scenario for group in groups for scenario in group]
    async with ScenarioServers(every, folder) as servers, running_driver(program, folder) as driver:
        for group in groups:
            found = await asyncio.gather(*(_run(each, servers, driver, folder) for each in group))
            problems |= {scenario.name: wrong for scenario, wrong in zip(group, found, strict=True)}
    return problems


async def _run(scenario: Scenario, servers: ScenarioServers, driver: Driver, folder: Path) -> list[str]:
    """Run one scenario and return what is wrong."""
    token, token_file, renew = _prepare_token(scenario, folder)
    if scenario.before:
        async with _direct_client(scenario, servers) as client:
            for _ in range(scenario.before):
                await client.reason(scenario.query)
    async with listening(_proxy_of(scenario, servers, renew)) as proxy, asyncio.TaskGroup() as tasks:
        servers.script.listeners[scenario.name] = _listener_of(scenario, servers, proxy, tasks)
        with _reserved_port() if scenario.faults.is_absent else nullcontext(proxy.address) as target:
            seen = await driver.ask(scenario.request(target, token, token_file))
    seen |= {"cuts": proxy.cuts_made, "connections": proxy.connections}
    seen |= await _look(scenario, servers)
    problems = scenario.find_problems(seen)
    return [*problems, f"the answer was {seen}"] if problems else []


def _prepare_token(scenario: Scenario, folder: Path) -> tuple[str | None, Path | None, Callable[[], None]]:
    """Return the token of a scenario or the file with it, and what is called when a call begins."""
    valid = mint(scenario.name)
    if scenario.token == "renewed":
        file = folder / f"{scenario.name}.token"
        file.write_text(mint(scenario.name, is_expired=True), "utf-8")
        return None, file, lambda: _replace(file, valid)
    tokens = {"valid": valid, "none": None, "expired": mint(scenario.name, is_expired=True)}
    return tokens[scenario.token], None, lambda: None


def _replace(file: Path, text: str) -> None:
    unfinished = file.with_suffix(".part")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(file)


def _proxy_of(scenario: Scenario, servers: ScenarioServers, renew: Callable[[], None]) -> CuttingProxy:
    faults = scenario.faults
    return CuttingProxy(
        upstream=servers.targets[scenario.server],
        cuts=None if faults.cut_seed is None else CutPlan(seed=faults.cut_seed, left=faults.cuts),
        refuses_s=faults.refuse_ms / 1000,
        is_silent=faults.is_silent,
        statuses_cut=faults.statuses_cut,
        tell_call=renew,
    )


def _listener_of(
    scenario: Scenario, servers: ScenarioServers, proxy: CuttingProxy, tasks: asyncio.TaskGroup
) -> Callable[[int], None]:
    """Return what is told the number of each model call of a scenario."""

    async def replace_server() -> None:
        proxy.move("")
        proxy.move(await servers.succeed(scenario.server))

    def listen(call: int) -> None:
        if call == scenario.faults.cut_at_model_call:
            proxy.cut_all()
        if call == scenario.faults.drain_at_model_call:
            tasks.create_task(replace_server())

    return listen


@asynccontextmanager
async def _direct_client(scenario: Scenario, servers: ScenarioServers) -> AsyncIterator[reasond.AsyncClient]:
    """Yield a client of the caller of a scenario, past the proxy."""
    options = {"grpc.use_local_subchannel_pool": 1}
    async with reasond.AsyncClient(
        servers.targets[scenario.server], token=mint(scenario.name), options=options
    ) as client:
        yield client


async def _look(scenario: Scenario, servers: ScenarioServers) -> dict[str, Any]:
    """Return what the servers know of a scenario: its executions, how the one of them ended, and the model's calls."""
    found: dict[str, Any] = {"model_calls": servers.script.calls[scenario.name], "ended_as": ""}
    if not {"executions", "ended_as"} & scenario.expect.keys():
        return found
    async with _direct_client(scenario, servers) as client:
        executions = [each async for each in client.list_executions()]
        if "ended_as" in scenario.expect:
            async for _ in client.follow_execution(executions[0].execution_id, timeout_s=PATIENCE_S):
                pass
            executions = [each async for each in client.list_executions()]
            found["ended_as"] = reasond.FinishReason.Name(executions[0].finish_reason)
        found["executions"] = len(executions) + len([each async for each in client.list_turns()])
    return found


@contextmanager
def _reserved_port() -> Iterator[str]:
    """Yield an address at which nobody listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"

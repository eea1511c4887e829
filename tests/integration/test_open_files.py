"""More connections than the process may open files: idle connections block nobody, on either listener."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from tests.faults.parts import FREE_PORTS
from tests.forking import ForkedProcess
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOFT = 200
# The server closes idle connections after a minute.
SOONER_S = 40


@contextmanager
def serving(folder: Path, *, soft: int, hard: int, **environ: str) -> Iterator[tuple[ForkedProcess, Path]]:
    """Run the command with limits of open files; yield the process and its log."""
    log = folder / "log"
    process = ForkedProcess(
        *("serve", "--dev", "--ready-file", folder / "ready"),
        environ={**os.environ, **FREE_PORTS, **environ},
        folder=folder,
        stderr=log,
        open_files=(soft, hard),
    )
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


async def addresses_of(process: ForkedProcess, folder: Path) -> dict[str, Any]:
    async with asyncio.timeout(180):
        while not (folder / "ready").exists():
            assert process.poll() is None, (folder / "log").read_text("utf-8")
            await asyncio.sleep(0.05)
    found: dict[str, Any] = json.loads((folder / "ready").read_text("utf-8"))
    return found


async def test_idle_connections_keep_nobody_out_though_there_are_more_than_the_soft_limit(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(tmp_path, soft=SOFT, hard=hard) as (process, _), ExitStack() as stack:
        addresses = await addresses_of(process, tmp_path)
        host, _, port = addresses["http"].removeprefix("http://").rpartition(":")
        for _ in range(SOFT + 20):
            _, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            # Idle after this request: a connection without any request would be closed sooner.
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        async with grpc.aio.insecure_channel(addresses["grpc"]) as channel:
            told = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SOONER_S)
            assert told.status == health_pb2.HealthCheckResponse.SERVING
        async with make_http_client(base_url=f"http://{host}:{port}", timeout=SOONER_S, trust_env=False) as client:
            assert (await client.get("/healthz")).status_code == 200


async def test_a_hard_limit_that_is_too_low_is_reported_at_the_start(tmp_path: Path) -> None:
    with serving(tmp_path, soft=SOFT, hard=500, REASOND__LOGS__FORMAT="json") as (process, log):
        await addresses_of(process, tmp_path)
        assert "the process may open 500 files" in log.read_text("utf-8")
        assert "max_http_connections" in log.read_text("utf-8")

"""A real Prometheus on a free port of this machine, started for a test and stopped after it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

START_LIMIT_S = 180.0
CALL_LIMIT_S = 180.0


def require_program(program: str) -> str:
    """Return the path of a program of Debian's package; if it is missing, the test is skipped, or fails if CI=true."""
    path = shutil.which(program)
    if path is None:
        message = f"{program} is not installed here (make test installs Debian's prometheus, as root)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to scrape: host:port, and its token, if it needs one."""

    address: str
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A running server."""

    port: int

    async def ask(self, expression: str) -> list[float]:
        """Return the current values of an expression, without NaN, which means that there is no data.

        Raises:
          AssertionError: the expression is invalid.
        """
        query = urllib.parse.urlencode({"query": expression})
        answer = await asyncio.to_thread(_get, f"http://127.0.0.1:{self.port}/api/v1/query?{query}")
        assert answer["status"] == "success", (expression, answer)
        values = [float(sample["value"][1]) for sample in answer["data"]["result"]]
        return [value for value in values if not math.isnan(value)]

    async def rules(self) -> list[str]:
        """Return the expressions of the rules."""
        answer = await asyncio.to_thread(_get, f"http://127.0.0.1:{self.port}/api/v1/rules")
        return [rule["query"] for group in answer["data"]["groups"] for rule in group["rules"]]


@asynccontextmanager
async def running_prometheus(
    folder: Path, targets: Sequence[Target], *, rules: Path
) -> AsyncGenerator[Prometheus, None]:
    """Scrape `targets` once a second, with the rules of a file, while the context lasts."""
    program = require_program("prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = folder / "prometheus.json"
    jobs = [_job(target, is_first=not number) for number, target in enumerate(targets)]
    whole = {"global": {"scrape_interval": "1s"}, "rule_files": [str(rules)], "scrape_configs": jobs}
    settings.write_text(json.dumps(whole), encoding="utf-8")
    log = folder / "prometheus.log"
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [
                program,
                f"--config.file={settings}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    server = Prometheus(port=port)
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while not await _is_ready(port):
                assert process.poll() is None, log.read_text("utf-8", "replace")
                await asyncio.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


def _job(target: Target, *, is_first: bool) -> dict[str, Any]:
    """Return the scrape configuration of `target`; all targets have one job, like the instances of one service."""
    authorization = {"authorization": {"credentials": target.token}} if target.token else {}
    return {
        "job_name": "reasond" if is_first else f"reasond at {target.address}",
        "static_configs": [{"targets": [target.address], "labels": {"job": "reasond"}}],
        **authorization,
    }


async def _is_ready(port: int) -> bool:
    try:
        await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/api/v1/query?query=1")
    except (OSError, ValueError):
        return False
    return True


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=CALL_LIMIT_S) as response:
        return json.loads(response.read())

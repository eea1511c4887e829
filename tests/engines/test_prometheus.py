"""A real Prometheus scrapes real servers, and every expression of the dashboard and the alerts returns data."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, Budget, Check, ResultFormat, client_tool, repair_task
from reasond_server.access.api_keys import create_key, hash_key
from reasond_server.config.api_key_file import ApiKeyRow, changing
from reasond_server.telemetry.catalogue import CATALOGUE
from scripts.dashboard import WINDOW
from tests.engines.prometheus_server import Target, require_program, running_prometheus
from tests.engines.served import Served, serving
from tests.faults.upstream import DONE, STREAM_HEAD, Conversation, chunk, upstream, usage
from tests.sandboxing import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from tests.engines.prometheus_server import Prometheus

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = ROOT / "docs" / "operations"
ALERTS = OPERATIONS / "alerts.yaml"
COMPARISON = re.compile(r"(?P<left>.*)\s(?:==|!=|>=|<=|>|<)\s[\d.]+", re.DOTALL)
LIMIT_S = 180.0
BOOK = resources.files("reasond_server").joinpath("demo/data/opticks.txt").read_text("utf-8")[:16_000]
SUM = "Calculate the compound interest on $10,000 at 5% for 3 years"
STRATEGIES = ("chain_of_thought", "tree_of_thought", "self_consistency")

REPAIR = repair_task(
    "The sum is wrong.",
    files={
        "calc.py": "def add(a, b):\n    return a - b\n",
        "test_calc.py": "import calc\n\nassert calc.add(2, 3) == 5\n",
    },
    environment="python",
    checks=[Check(name="sum", argv=["python", "test_calc.py"], format=ResultFormat.RESULT_FORMAT_EXIT_CODE)],
    config={"num_candidates": 1, "max_candidates": 2},
)
REPAIRS = {
    "REASOND__REPAIR__ENABLED": "true",
    **PROGRAMS,
}

# One call at a time at the backend, two places, one in the queue: four callers meet every kind of waiting.
STRAITENED = {
    "REASOND__LLM__PROVIDER": "openai",
    "REASOND__LLM__MODEL": "fake",
    "REASOND__LLM__API_KEY_ENV": "",
    "REASOND__LLM__INPUT_PRICE_USD": "2.5",
    "REASOND__LLM__OUTPUT_PRICE_USD": "10",
    "REASOND__LLM__MAX_CONCURRENCY": "1",
    "REASOND__LLM__FIRST_WAIT_S": "0.01",
    "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "2",
    "REASOND__REASONING__PERFORMANCE__MAX_QUEUED_REQUESTS": "1",
    "REASOND__LIMITS__TOKENS_PER_DAY": "10000000",
    "REASOND__LIMITS__REQUESTS_PER_HOUR": "100000",
}


@client_tool
def book_title() -> str:
    """Return the title of the book."""
    return "Opticks"


class Backend:
    """A model server controlled by the question: HOLD waits, FAIL ONCE fails every other time, REFUSE always."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.came = asyncio.Event()
        self._failed = 0

    async def __call__(self, conversation: Conversation) -> None:
        asked = json.dumps(conversation.json["messages"])
        if "FAIL ONCE" in asked:
            self._failed += 1
            if self._failed % 2:
                await conversation.answer("500 Internal Server Error", b"{}")
                return
        if "REFUSE" in asked:
            await conversation.answer("400 Bad Request", b"{}")
            return
        if "HOLD" in asked:
            self.came.set()
            await self.released.wait()
        told = () if "UNCOUNTED" in asked else (usage(40, 4),)
        body = b"".join((chunk("Four."), chunk(finish="stop"), *told, DONE))
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + body)


@pytest.fixture
async def backend() -> AsyncIterator[tuple[Backend, str]]:
    plays = Backend()
    async with upstream(plays) as running:
        yield plays, running.address


async def await_end(call: Awaitable[object]) -> None:
    """Wait for the end of a call, also if it fails."""
    await asyncio.gather(call, return_exceptions=True)


def post(served: Served, body: object, *, path: str = "/api/v1/jsonrpc", accept: str = "application/json") -> bytes:
    headers = {"content-type": "application/json", "authorization": f"Bearer {served.token}", "accept": accept}
    request = urllib.request.Request(f"http://{served.http}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=180) as response:
            answer: bytes = response.read()
    except urllib.error.HTTPError as error:
        return error.read()
    return answer


def call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def make_key(file: Path) -> str:
    """Return an API key of a new file of keys."""
    made = create_key()
    with changing(file) as rows:
        row = ApiKeyRow(
            id=made.id,
            sha256=hash_key(made.text),
            subject="chat",
            permissions=("reasoning:execute",),
            created=datetime.now(UTC),
        )
        rows.append(row)
    return made.text


async def use_freely(served: Served, key: str = "") -> None:
    """Use all strategies, tools and both transports, and cause refusals, on a server with the demo model.

    `key` is an API key of the server, if it has any.
    """
    async with AsyncClient(served.grpc, token=served.token) as client:
        for strategy in STRATEGIES:
            await client.reason(SUM, strategy=strategy)
        await client.reason(SUM, strategy="react", config={"allow_tool_use": True})
        config = {"chunk_size": 2048, "carryover_size": 512}
        question = "What is the only remedy for the confusion caused by the tremors of the air?"
        async for _ in client.reason_iterations(question, material=BOOK, strategy="bounded_context", config=config):
            pass
        await client.list_strategies()
        await client.turn("Read the book title.", tools=[book_title])
        await await_end(client.repair(REPAIR))
        await await_end(client.reason(SUM, strategy="program_of_thought", config={"max_program_s": 60.0}))
        await await_end(client.reason(SUM, strategy="nothing_like_it"))
        await await_end(client.reason(SUM, budget=Budget(max_total_tokens=1)))
    async with AsyncClient(served.grpc, token=key or served.token) as program:
        await program.list_strategies()
    async with AsyncClient(served.grpc, token="not a token") as stranger:
        await await_end(stranger.reason(SUM))
    for body in (call("reasoning.execute", query=SUM), call("executions.list"), call("no.such.method")):
        await asyncio.to_thread(post, served, body)
    await asyncio.to_thread(post, served, call("reasoning.execute", query=SUM), accept="text/event-stream")
    await asyncio.to_thread(post, served, {}, path="/nowhere")


async def use_up(served: Served, plays: Backend) -> None:
    """Exhaust places, the backend and budgets, on a server that uses the given model server."""
    plays.released.clear()
    plays.came.clear()
    async with AsyncClient(served.grpc, token=served.token) as client, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(client.reason("HOLD"))
        await plays.came.wait()
        others = [tasks.create_task(await_end(client.reason(f"HOLD {number}"))) for number in range(3)]
        # One of these three waits for the backend, one for a place, and the first to end was refused.
        await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        plays.released.set()
        await first
    async with AsyncClient(served.grpc, token=served.token) as client:
        await await_end(client.reason("FAIL ONCE"))
        await await_end(client.reason("REFUSE"))
        await client.reason("UNCOUNTED")


def dashboard_expressions() -> Sequence[str]:
    panels = json.loads((OPERATIONS / "grafana-dashboard.json").read_text("utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [expression.replace(WINDOW, "20s").replace("$job", "reasond") for expression in found]


async def alert_expressions(prometheus: Prometheus) -> Sequence[str]:
    """Return the left side of each alert's comparison, as Prometheus has parsed it."""
    rules = await prometheus.rules()
    found = [COMPARISON.fullmatch(rule) for rule in rules]
    assert all(found), rules
    return [match["left"] for match in found if match]


async def test_every_expression_of_the_dashboard_and_the_alerts_returns_data_from_a_real_prometheus(
    tmp_path: Path, backend: tuple[Backend, str]
) -> None:
    plays, address = backend
    settings = {**STRAITENED, "REASOND__LLM__BASE_URL": address}
    key = make_key(tmp_path / "keys.json")
    own = {"REASOND__LLM__PROVIDER": "demo", "REASOND__METRICS__ADDRESS": "127.0.0.1:0", **REPAIRS}
    own["REASOND__AUTH__API_KEYS_FILE"] = str(tmp_path / "keys.json")
    async with AsyncExitStack() as stack:
        free = await stack.enter_async_context(serving(tmp_path, "free", own))
        short = await stack.enter_async_context(serving(tmp_path, "short", settings))
        scraped = [
            Target(address=free.metrics.removeprefix("http://").removesuffix("/metrics")),
            Target(address=short.http, token=short.token),
        ]
        prometheus = await stack.enter_async_context(running_prometheus(tmp_path, scraped, rules=ALERTS))
        silent = [*dashboard_expressions(), *await alert_expressions(prometheus)]
        assert len(silent) > 70
        limit = time.monotonic() + LIMIT_S
        # A rate needs an earlier sample: the first round creates the series, the second increases them.
        while silent:
            assert time.monotonic() < limit, silent
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(use_freely(free, key))
                tasks.create_task(use_up(short, plays))
            silent = [expression for expression in silent if not await prometheus.ask(expression)]


def test_every_metric_is_on_the_dashboard() -> None:
    shown = "\n".join(dashboard_expressions())
    assert [metric for metric in CATALOGUE.values() if not re.search(rf"\b{metric.exposed_name}", shown)] == []


def test_every_metric_in_an_expression_exists() -> None:
    known = {
        f"{metric.exposed_name}{suffix}"
        for metric in CATALOGUE.values()
        for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
    }
    asked = "\n".join((*dashboard_expressions(), ALERTS.read_text("utf-8")))
    used = re.findall(r"\b(?:reasond|process)_[a-z_]+\b(?=[{\[)]| ==)", asked)
    assert used
    assert set(used) - known == set()


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    program = require_program("promtool")
    rules = Path(__file__).with_name("alerts_test.yaml")
    for arguments in (("check", "rules", ALERTS), ("test", "rules", rules)):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr


async def test_promtool_finds_nothing_wrong_with_what_is_exposed(tmp_path: Path) -> None:
    program = require_program("promtool")
    async with serving(tmp_path, "one", {"REASOND__METRICS__ADDRESS": "127.0.0.1:0"}) as served:
        await use_freely(served)
        with await asyncio.to_thread(urllib.request.urlopen, served.metrics, timeout=180) as response:
            text = response.read()
    done = subprocess.run(  # noqa: ASYNC221 - nothing else is at work
        [program, "check", "metrics"], input=text, capture_output=True, check=False, timeout=180
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

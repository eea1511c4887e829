"""Real servers are killed while they repair: another one goes on, asks the model for nothing twice, and loses nothing.

By hand: `REPAIR_KILLS=20 pytest -n0 tests/faults/test_repair_crashes.py`.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond.v1.execution_pb2 import FINISH_REASON_ANSWERED, ExecutionCursor
from reasond.v1.repairs_pb2 import CHECK_ROLE_HELD_OUT, CHECK_ROLE_REPRODUCE, VERIFICATION_HELD_OUT, Check
from reasond_server.types.repairs import SandboxLevel
from tests.engines.served import serving
from tests.faults.turn_servers import read_count
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage
from tests.sandboxing import require_level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from reasond.v1.repair_service_pb2 import RepairStepsResponse
    from reasond.v1.repairs_pb2 import RepairTask
    from tests.engines.served import Served
    from tests.faults.upstream import Conversation, Upstream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]

KILLS = read_count("REPAIR_KILLS", 2)
RIGHT = 9
"""The attempt that is right: in the second round."""
PATIENCE_S = 300.0
WRITTEN = 40
"""Tokens of a reply."""
CODE = "def scale(value):\n    return value\n"
TEST = (
    "import time, unittest\nfrom scaling import scale\n\n\nclass ScaleTest(unittest.TestCase):\n"
    "    def test_scale(self):\n        time.sleep(0.1)\n        self.assertEqual(scale(1), 9)\n"
)


def edit(attempt: int) -> str:
    """Return the reply to an attempt: it multiplies by its number, so each is different and one is right."""
    return (
        f"The factor is missing.\n\nscaling.py\n<<<<<<< SEARCH\n    return value\n=======\n"
        f"    return value * {attempt}\n>>>>>>> REPLACE\n"
    )


class CountingModel:
    """Answers attempts, and counts how often it was asked for each.

    It leaves without an answer where an attempt in `lost` is asked for the first time. `allowed` is how much each
    request let it write.
    """

    def __init__(self, *, lost: Collection[int] = ()) -> None:
        self._lost = lost
        self.allowed: list[int] = []
        self.asked: Counter[int] = Counter()
        self.answered: Counter[int] = Counter()

    async def answer(self, conversation: Conversation) -> None:
        """Answer one request."""
        body = conversation.json
        if "messages" not in body:
            await conversation.answer("404 Not Found", b"{}")
            return
        attempt = int(re.findall(r"Attempt (\d+)", body["messages"][-1]["content"])[-1])
        self.asked[attempt] += 1
        self.allowed.append(body["max_tokens"])
        if attempt in self._lost and self.asked[attempt] == 1:
            conversation.abort()
            return
        text = (
            chunk(edit(attempt))
            + chunk(finish="stop")
            + usage(sum(len(each["content"]) for each in body["messages"]) // 4, WRITTEN)
        )
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + text + DONE)
        self.answered[attempt] += 1


def make_task() -> RepairTask:
    test = ("python3", "-m", "unittest", "-q", "test_scaling")
    hidden = ("python3", "-c", "from scaling import scale; assert scale(2) == 18")
    return reasond.repair_task(
        "scale multiplies by nine",
        files={"scaling.py": CODE, "test_scaling.py": TEST},
        environment="tests",
        checks=[
            Check(name="tests", role=CHECK_ROLE_REPRODUCE, argv=test),
            Check(name="hidden", role=CHECK_ROLE_HELD_OUT, argv=hidden),
        ],
        config={"min_improvement_delta": 0.0, "patience": 100},
    )


def settings_of(model: Upstream) -> dict[str, str]:
    """Return the settings of a server that repairs with `model`; only its store is missing."""
    return {
        "OPENAI_API_KEY": "none",
        "REASOND__STORE__LEASE_S": "3",
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__BASE_URL": model.address,
        "REASOND__LLM__MODEL": "fake",
        "REASOND__REPAIR__ENABLED": "true",
        "REASOND__REPAIR__ENVIRONMENTS__TESTS__ROOT": sys.prefix,
        "REASOND__REPAIR__ENVIRONMENTS__TESTS__PRESET": "python",
        "REASOND__REPAIR__ENVIRONMENTS__TESTS__FORMAT": "exit_code",
    }


@asynccontextmanager
async def client_of(served: Served) -> AsyncIterator[reasond.AsyncClient]:
    async with reasond.AsyncClient(
        served.grpc, token=served.token, options={"grpc.use_local_subchannel_pool": 1}
    ) as client:
        yield client


async def test_a_repair_whose_server_is_killed_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    require_level(SandboxLevel.BWRAP)
    chance = random.Random()  # noqa: S311 - no secret
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        await check_kill(folder, after=chance.randint(1, 20))


async def check_kill(folder: Path, *, after: int) -> None:
    """Kill a server after so many events of a repair, and let another one go on."""
    model = CountingModel()
    async with upstream(model.answer) as server:
        environ = settings_of(server) | {"REASOND__STORE__URL": f"sqlite:///{folder / 'reasond.db'}"}
        async with serving(folder, "first", environ) as first, client_of(first) as client:
            seen = await follow(client, make_task(), most=after)
            first.process.kill()
            first.process.wait()
        async with serving(folder, "second", environ) as second, client_of(second) as client:
            cursor = ExecutionCursor(execution_id=seen[-1].execution_id)
            async with asyncio.timeout(PATIENCE_S):
                whole = await follow(client, cursor)
    assert [each.sequence for each in whole] == [*range(1, len(whole) + 1)]
    assert [each.SerializeToString() for each in whole[: len(seen)]] == [each.SerializeToString() for each in seen]
    result = whole[-1].completed
    assert result.is_accepted
    assert (result.finish_reason, result.verification) == (FINISH_REASON_ANSWERED, VERIFICATION_HELD_OUT)
    assert f"+    return value * {RIGHT}" in result.patch
    told = {each.candidate.candidate_id for each in seen if each.HasField("candidate")}
    repeated = {f"cand-{attempt}" for attempt, count in model.asked.items() if count > 1}
    assert not repeated & told, "a call was paid twice whose reply was in the log"
    assert not result.warnings
    sys.stdout.write(
        f"killed after event {len(seen)} of {len(whole)}: {sum(model.asked.values())} calls for {len(model.asked)} "
        f"attempts, {len(repeated)} that were in flight made again\n"
    )


async def follow(
    client: reasond.AsyncClient, source: RepairTask | ExecutionCursor, *, most: int = sys.maxsize
) -> list[RepairStepsResponse]:
    """Return the logged events to the end, or the first ones."""
    found: list[RepairStepsResponse] = []
    async for each in client.repair_steps(source, keep_running=True, timeout_s=PATIENCE_S):
        found += [each] if each.WhichOneof("event") not in {"delta", "heartbeat"} else []
        if len(found) == most:
            break
    return found

"""Many repairs at once never spend more than the account of their caller, nor each more than its own budget."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond.v1.execution_pb2 import Budget
from reasond.v1.repairs_pb2 import CHECK_ROLE_REGRESSION, CHECK_ROLE_REPRODUCE, Check, Repair
from tests.engines.served import serving
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from reasond.v1.repairs_pb2 import RepairTask
    from tests.faults.upstream import Conversation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

REPAIRS = 64
ACCOUNT = 120_000
OWN_BUDGET = 9_000
DAY_S = 86_400
PATIENCE_S = 600.0


PLAN = "1. Write the code of the cart\n2. Test it well"
EDIT = "calc.py\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a - b - {}\n>>>>>>> REPLACE\n"
"""A candidate that is wrong, and different each time."""
FILES = {"calc.py": "def add(a, b):\n    return a - b\n"}
CHECKS = [
    Check(
        name="fault", role=CHECK_ROLE_REPRODUCE, argv=("python3", "-c", "from calc import add; assert add(1, 2) == 3")
    ),
    Check(name="rest", role=CHECK_ROLE_REGRESSION, argv=("python3", "-c", "import calc")),
]
MOST_CHECKS = 16


def plan(number: int, budget: Budget | None = None) -> RepairTask:
    return reasond.repair_task(f"number {number} of many", is_plan=True, budget=budget)


def fix(number: int, budget: Budget | None = None) -> RepairTask:
    return reasond.repair_task(
        f"number {number} of many",
        files=FILES,
        environment="tests",
        checks=CHECKS,
        budget=budget,
        config={"max_checks": MOST_CHECKS, "patience": 100},
    )


class CountingModel:
    """Counts what it may be charged for: each byte of a prompt as a token, and all that it was allowed to write."""

    def __init__(self) -> None:
        self._answers = 0
        self.spent: dict[str, int] = defaultdict(int)

    async def answer(self, conversation: Conversation) -> None:
        """Answer with a plan or an edit, and say that it wrote all that it could."""
        body = conversation.json
        if "messages" not in body:
            await conversation.answer("404 Not Found", b"{}")
            return
        texts = [each["content"] for each in body["messages"]]
        prompt, most = (
            sum(len(text.encode()) for text in texts),
            body.get("max_completion_tokens", body.get("max_tokens")),
        )
        number = texts[-1].partition("number ")[2].partition(" ")[0]
        self.spent[number] += prompt + most
        self._answers += 1
        await asyncio.sleep(0.02)
        text = (
            chunk(EDIT.format(self._answers) if "calc.py" in texts[-1] else PLAN)
            + chunk(finish="stop")
            + usage(prompt, most)
        )
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + text + DONE)


async def race(
    folder: Path, tasks: Sequence[RepairTask], **environ: str
) -> tuple[dict[str, int], list[Repair | BaseException]]:
    """Let all repairs run at once; return what each spent, and the results or errors."""
    model = CountingModel()
    async with upstream(model.answer) as server:
        settings = {
            "OPENAI_API_KEY": "none",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__LLM__MODEL": "fake",
            "REASOND__REPAIR__ENABLED": "true",
            "REASOND__REPAIR__MAX_TOKENS": "512",
            "REASOND__REPAIR__ENVIRONMENTS__TESTS__ROOT": sys.prefix,
            "REASOND__REPAIR__ENVIRONMENTS__TESTS__PRESET": "python",
            "REASOND__REPAIR__ENVIRONMENTS__TESTS__FORMAT": "exit_code",
            "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "100",
            **environ,
        }
        async with (
            serving(folder, "server", settings) as served,
            reasond.AsyncClient(served.grpc, token=served.token) as client,
        ):
            calls = [client.repair(task, timeout_s=PATIENCE_S) for task in tasks]
            results = await asyncio.gather(*calls, return_exceptions=True)
    return model.spent, results


@pytest.mark.parametrize("make", [plan, fix])
async def test_racing_repairs_never_spend_more_than_the_account_of_their_caller(
    tmp_path: Path, make: Callable[[int], RepairTask]
) -> None:
    began_s = asyncio.get_running_loop().time()
    tasks = [make(number) for number in range(REPAIRS)]
    spent, results = await race(tmp_path, tasks, REASOND__LIMITS__TOKENS_PER_DAY=str(ACCOUNT))
    took_s = asyncio.get_running_loop().time() - began_s
    assert sum(spent.values()) <= ACCOUNT * (1 + took_s / DAY_S) + 1
    errors = [each for each in results if isinstance(each, BaseException)]
    assert errors, "the account was never reached"
    for error in errors:
        assert isinstance(error, reasond.ReasondError)
        assert error.reason == "TOKEN_BUDGET_EXHAUSTED", json.dumps(str(error))


@pytest.mark.parametrize("make", [plan, fix])
async def test_no_repair_spends_more_than_its_own_budget(
    tmp_path: Path, make: Callable[[int, Budget], RepairTask]
) -> None:
    budget = Budget(max_total_tokens=OWN_BUDGET)
    spent, results = await race(tmp_path, [make(number, budget) for number in range(REPAIRS // 2)])
    assert len(spent) == REPAIRS // 2
    assert max(spent.values()) <= OWN_BUDGET
    assert all(isinstance(result, Repair) for result in results)


async def test_no_repair_runs_more_checks_than_it_may(tmp_path: Path) -> None:
    _, results = await race(tmp_path, [fix(number) for number in range(REPAIRS // 8)])
    for result in results:
        assert isinstance(result, Repair)
        # Another candidate could need four.
        assert MOST_CHECKS - 4 < result.checks <= MOST_CHECKS
        assert any(f"within max_checks = {MOST_CHECKS} ({result.checks} taken" in each for each in result.warnings)

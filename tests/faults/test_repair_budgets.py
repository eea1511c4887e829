"""Many repairs at once never spend more than the account of their caller, nor each more than its own budget."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond.v1.execution_pb2 import Budget
from tests.engines.served import serving
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.upstream import Conversation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

REPAIRS = 64
ACCOUNT = 120_000
OWN_BUDGET = 9_000
DAY_S = 86_400
PATIENCE_S = 600.0


class CountingModel:
    """Counts what it may be charged for: each byte of a prompt as a token, and all that it was allowed to write."""

    def __init__(self) -> None:
        self.spent: dict[str, int] = defaultdict(int)

    async def answer(self, conversation: Conversation) -> None:
        """Answer with a plan, and say that it wrote all that it could."""
        body = conversation.json
        if "messages" not in body:
            await conversation.answer("404 Not Found", b"{}")
            return
        texts = [each["content"] for each in body["messages"]]
        prompt, most = (
            sum(len(text.encode()) for text in texts),
            body.get("max_completion_tokens", body.get("max_tokens")),
        )
        self.spent[texts[-1].partition("plan number ")[2].partition(" ")[0]] += prompt + most
        await asyncio.sleep(0.02)
        text = chunk("1. Write the code of the cart\n2. Test it well") + chunk(finish="stop") + usage(prompt, most)
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + text + DONE)


async def race(folder: Path, budget: Budget | None, **environ: str) -> tuple[dict[str, int], list[BaseException]]:
    """Let all repairs run at once; return what each spent, and the errors."""
    model = CountingModel()
    async with upstream(model.answer) as server:
        settings = {
            "OPENAI_API_KEY": "none",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__LLM__MODEL": "fake",
            "REASOND__REPAIR__ENABLED": "true",
            "REASOND__REPAIR__MAX_TOKENS": "512",
            "REASOND__REPAIR__SANDBOX__LEVEL": "off",
            "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "100",
            **environ,
        }
        async with (
            serving(folder, "server", settings) as served,
            reasond.AsyncClient(served.grpc, token=served.token) as client,
        ):
            tasks = [
                client.repair(
                    reasond.repair_task(f"plan number {number} of many", is_plan=True, budget=budget),
                    timeout_s=PATIENCE_S,
                )
                for number in range(REPAIRS)
            ]
            results = await asyncio.gather(*tasks, return_exceptions=True)
    return model.spent, [each for each in results if isinstance(each, BaseException)]


async def test_racing_repairs_never_spend_more_than_the_account_of_their_caller(tmp_path: Path) -> None:
    began_s = asyncio.get_running_loop().time()
    spent, errors = await race(tmp_path, None, REASOND__LIMITS__TOKENS_PER_DAY=str(ACCOUNT))
    took_s = asyncio.get_running_loop().time() - began_s
    assert sum(spent.values()) <= ACCOUNT * (1 + took_s / DAY_S) + 1
    assert errors, "the account was never reached"
    for error in errors:
        assert isinstance(error, reasond.ReasondError)
        assert error.reason == "TOKEN_BUDGET_EXHAUSTED", json.dumps(str(error))


async def test_no_repair_spends_more_than_its_own_budget(tmp_path: Path) -> None:
    spent, errors = await race(tmp_path, Budget(max_total_tokens=OWN_BUDGET))
    assert not errors
    assert len(spent) == REPAIRS
    assert max(spent.values()) <= OWN_BUDGET

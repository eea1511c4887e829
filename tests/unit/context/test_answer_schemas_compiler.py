"""Schemas of callers are compiled one at a time, tenants take turns, and who leaves frees nothing that still works."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from reasond_server.context.answer_schemas import AnswerSchema, SchemaCompiler
from reasond_server.errors.limits import OverloadedError
from reasond_server.tools.schema_steps import SchemaUnusableError

if TYPE_CHECKING:
    from reasond_server.types import Json


class Bench:
    """Builds schemas when it is let, and notes by their titles in which order, and how many at once at most."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.order: list[str] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self.gate = threading.Event()
        self.begun = threading.Event()
        if is_open:
            self.gate.set()
        self.compiler = SchemaCompiler(build=self._build)

    def _build(self, schema: Json) -> AnswerSchema:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.order.append(schema["title"])
        self.begun.set()
        assert self.gate.wait(60)
        try:
            return AnswerSchema(schema)
        finally:
            with self._lock:
                self._at_once -= 1

    async def check(self, name: str) -> None:
        """Check a schema for the tenant of the first letter of its name."""
        await self.compiler.check({"title": name}, tenant=name[0])


async def test_sixty_schemas_at_once_are_compiled_one_after_another_for_requests_and_for_runs() -> None:
    bench = Bench()
    checks = (bench.check(f"a{index}") for index in range(30))
    compiled = (bench.compiler.compile({"title": f"b{index}"}) for index in range(30))
    await asyncio.gather(*checks, *compiled)
    assert len(bench.order) == 60
    assert bench.most_at_once == 1


async def test_a_tenant_with_many_schemas_does_not_delay_another_ones() -> None:
    bench = Bench(is_open=False)
    many = [asyncio.create_task(bench.check(f"a{index}")) for index in range(20)]
    await asyncio.to_thread(bench.begun.wait, 60)
    other = asyncio.create_task(bench.check("b"))
    await asyncio.sleep(0)
    bench.gate.set()
    await asyncio.gather(*many, other)
    assert bench.order.index("b") <= 2


async def test_who_leaves_while_its_schema_is_compiled_lets_no_other_one_begin() -> None:
    bench = Bench(is_open=False)
    left = asyncio.create_task(bench.check("a"))
    await asyncio.to_thread(bench.begun.wait, 60)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    waiting = [asyncio.create_task(bench.check(name)) for name in ("a2", "b1", "b2")]
    waiting[1].cancel()
    await asyncio.sleep(0)
    assert bench.order == ["a"]
    bench.gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert bench.most_at_once == 1
    assert bench.order == ["a", "a2", "b2"]


async def test_a_schema_that_cannot_be_used_is_told_and_the_next_one_is_compiled() -> None:
    compiler = SchemaCompiler()
    with pytest.raises(SchemaUnusableError, match="is no JSON Schema"):
        await compiler.check({"type": 7}, tenant="a")
    assert (await compiler.compile({"type": "integer"})).check("7").json == "7"


async def test_a_run_is_not_refused_because_requests_fill_the_queue() -> None:
    bench = Bench(is_open=False)
    requests = [asyncio.create_task(bench.check(f"a{index}")) for index in range(300)]
    await asyncio.to_thread(bench.begun.wait, 60)
    run = asyncio.create_task(bench.compiler.compile({"title": "run"}))
    await asyncio.sleep(0)
    bench.gate.set()
    ends = await asyncio.gather(*requests, return_exceptions=True)
    refused = [end for end in ends if isinstance(end, OverloadedError)]
    assert len(refused) == 300 - 1 - 256
    assert "Too many requests with a schema" in str(refused[0])
    assert (await run).check("7").json == "7"

"""Trials: each question asked in each way, within a budget, recorded line by line so that nothing is paid twice.

A way is a strategy with parameters, as the command line writes it. A trial is an execution whose request id follows
from what is asked. A command that was killed finds its executions again: those that ended in its record, and those that
run or ended meanwhile at the server, as long as it keeps them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TextIO

import reasond
from reasond_server.errors.base import SettingsError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from reasond import AsyncClient, Reasoning
    from reasond_server.evaluation.graders import Graders
    from reasond_server.evaluation.items import Item


@value
class StrategySetup:
    """One way: the strategy, its parameters, and the model; empty for that of the server.

    `name` is what reports say, such as `self_consistency:samples=3`.
    """

    name: str
    strategy: str
    config: Mapping[str, Any]
    model: str = ""


def read_way(text: str, *, model: str = "") -> StrategySetup:
    """Read `STRATEGY` or `STRATEGY:KEY=VALUE,KEY=VALUE`; values are JSON, or else text.

    Raises:
        SettingsError: it has another form.
    """
    strategy, _, settings = text.partition(":")
    config: dict[str, Any] = {}
    for part in filter(None, settings.split(",")):
        key, equals, found = part.partition("=")
        if not key.strip() or not equals:
            raise SettingsError(f"{part[:80]!r} is no KEY=VALUE", remedy="Such as self_consistency:samples=3.")
        try:
            config[key.strip()] = json.loads(found)
        except ValueError:
            config[key.strip()] = found.strip()
    if not strategy.strip():
        raise SettingsError(f"{text[:80]!r} names no strategy", remedy="Such as self_consistency:samples=3.")
    return StrategySetup(name=text, strategy=strategy.strip(), config=config, model=model)


def compute_key(item: Item, way: StrategySetup, *, served_model: str, repeat: int) -> str:
    """Return the digest of what is asked, how and of which model: equal keys are the same execution, paid once."""
    model = way.model or served_model
    asked = [item.asked, item.material, item.system, item.schema, way.strategy, way.config, model, repeat]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:40]


def require_different(ways: Sequence[StrategySetup]) -> None:
    """Raise SettingsError if two of `ways` have the same name."""
    names = [way.name for way in ways]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"the way {name[:80]!r} is named twice")


DEFAULT_ITEM_TOKENS: Final = 50_000
"""Most tokens of one execution where a budget is given."""

_ATTEMPTS: Final = 6
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 60.0
# Every further trial would end alike.
_ENDS_ALL: Final = (
    reasond.AuthenticationError,
    reasond.PermissionDeniedError,
    reasond.NotFoundError,
    reasond.StrategyError,
)
# The violation of a request that names a model which the server does not offer.
_MODEL_FIELD: Final = "task.model"
# What says nothing about the question: asked again, and never recorded.
_MAY_PASS: Final = (reasond.UnavailableError, reasond.ResourceExhaustedError)
_NANOS: Final = 1e9


@value
class Trial:
    """One question asked in one way.

    Attributes:
        key: of `compute_key`; a trial of the same key is the same.
        way: the name of the way.
        finish: the finish reason, without a prefix, in capitals; of a call that failed its reason.
        is_failed: whether there is no result; the tokens are then those that are known.
        seconds: from start to end at the server.
        cost_usd: what it cost in US dollars; None where the server has no prices.
    """

    key: str
    item_id: str
    way: str
    repeat: int = 0
    answer: str = ""
    answer_json: str = ""
    finish: str = ""
    is_failed: bool = False
    is_right: bool = False
    note: str = ""
    execution_id: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    cost_usd: float | None = None

    @property
    def tokens(self) -> int:
        """All tokens, input and output together."""
        return self.input_tokens + self.output_tokens

    @property
    def is_unspent(self) -> bool:
        """Whether it failed before anything was spent: no record keeps it, and the next command asks again."""
        return self.is_failed and self.tokens == 0


@dataclass(eq=False, kw_only=True)
class TokenBudget:
    """A bound on the tokens of all trials: what a trial may spend is reserved before it begins.

    Args:
        most: most tokens in all; None for no bound.
        each: most tokens of one trial.
    """

    most: int | None = None
    each: int = DEFAULT_ITEM_TOKENS
    spent: int = 0
    _reserved: int = field(default=0, init=False)

    def reserve(self) -> int | None:
        """Reserve the tokens of one trial and return them; None where nothing is bounded, 0 if nothing is left."""
        if self.most is None:
            return None
        granted = max(0, min(self.each, self.most - self.spent - self._reserved))
        self._reserved += granted
        return granted

    def settle(self, granted: int | None, spent: int) -> None:
        """Count what a trial spent in place of what it had reserved."""
        self._reserved -= granted or 0
        self.spent += spent


class TrialRecord:
    """The file of trials, one JSON object a line; opened once by each command."""

    def __init__(self, file: TextIO, trials: dict[str, Trial]) -> None:
        self._file = file
        self._trials = trials

    def find(self, key: str) -> Trial | None:
        """Return the trial of that key; None if it has not ended."""
        return self._trials.get(key)

    def add(self, trial: Trial) -> None:
        """Write a trial, so that it survives the end of the process and of the machine; not one that spent nothing."""
        if trial.is_unspent:
            return
        self._trials[trial.key] = trial
        self._file.write(f"{json.dumps(asdict(trial), ensure_ascii=False)}\n")
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def open_record(path: Path) -> Iterator[TrialRecord]:
    """Open the record `path` or begin one; a last line that was cut by the end of its process is left out.

    Raises:
        SettingsError: it cannot be opened, or it is no record of trials.
    """
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        trials = {trial.key: trial for trial in map(_read_trial, lines[:-1]) if not trial.is_unspent}
        if lines[-1]:
            os.truncate(path, path.stat().st_size - len(lines[-1]))
        with path.open("a", encoding="utf-8") as file:
            yield TrialRecord(file, trials)
    except OSError as error:
        raise SettingsError(f"the record {str(path)!r} cannot be used: {error.strerror}") from None
    except (ValueError, TypeError):
        raise SettingsError(
            f"{str(path)!r} is no record of trials", remedy="Name another file with --record, or move this one away."
        ) from None


def _read_trial(line: bytes) -> Trial:
    return Trial(**json.loads(line))


@dataclass(eq=False, kw_only=True)
class Trials:
    """Makes the trials of `items` in `ways`, `at_once` at a time.

    Args:
        served_model: the name of the server's own model; trials of another one are others.
        repeats: how often each question is asked in each way.
        on_trial: is called with each trial that has ended, recorded ones included.
        timeout_s: longest time of one execution, in seconds.
    """

    client: AsyncClient
    graders: Graders
    record: TrialRecord
    items: Sequence[Item]
    ways: Sequence[StrategySetup]
    served_model: str
    repeats: int = 1
    at_once: int = 4
    budget: TokenBudget = field(default_factory=TokenBudget)
    timeout_s: float = 600.0
    on_trial: Callable[[Trial], None] = lambda _: None

    async def run(self) -> Sequence[Trial]:
        """Make all trials that the budget allows and return those that have ended, by question, way and repeat.

        Raises:
            reasond.ReasondError: a call failed in a way in which every call would.
        """
        wanted = [(item, way, repeat) for item in self.items for way in self.ways for repeat in range(self.repeats)]
        ended: dict[str, Trial] = {}
        waiting = iter(wanted)

        async def work() -> None:
            for item, way, repeat in waiting:
                trial = await self._make(item, way, repeat)
                if trial is None:
                    return
                ended[trial.key] = trial
                self.on_trial(trial)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.at_once, len(wanted))):
                    group.create_task(work())
        except* (reasond.ReasondError, SettingsError) as failed:
            raise failed.exceptions[0] from None
        keys = (self._compute_key(item, way, repeat) for item, way, repeat in wanted)
        return [ended[key] for key in keys if key in ended]

    async def _make(self, item: Item, way: StrategySetup, repeat: int) -> Trial | None:
        """Return the trial, from the record if it is there; None if the budget has no room for it."""
        key = self._compute_key(item, way, repeat)
        if (known := self.record.find(key)) is not None:
            self.budget.spent += known.tokens
            # What is right may have been corrected since, and two ways may share what they ask.
            return await self._grade(item, replace(known, item_id=item.item_id, way=way.name))
        granted = self.budget.reserve()
        if granted == 0:
            return None
        trial = Trial(key=key, item_id=item.item_id, way=way.name, repeat=repeat)
        try:
            trial = await self._ask(item, way, trial, granted)
        finally:
            self.budget.settle(granted, trial.tokens)
        trial = await self._grade(item, trial)
        self.record.add(trial)
        return trial

    def _compute_key(self, item: Item, way: StrategySetup, repeat: int) -> str:
        return compute_key(item, way, served_model=self.served_model, repeat=repeat)

    async def _grade(self, item: Item, trial: Trial) -> Trial:
        if trial.is_failed:
            return trial
        verdict = await self.graders.grade(item, answer=trial.answer, answer_json=trial.answer_json)
        return replace(trial, is_right=verdict.is_right, note=verdict.note)

    async def _ask(self, item: Item, way: StrategySetup, trial: Trial, granted: int | None) -> Trial:
        """Ask the question, again where the server says that waiting helps; the request id finds what was begun."""
        wait_s = _FIRST_WAIT_S
        for attempt in range(1, _ATTEMPTS + 1):
            stream = self.client.reason_iterations(
                item.asked,
                material=item.material,
                system=item.system,
                strategy=way.strategy,
                config=way.config or None,
                model=way.model or None,
                answer_schema=item.schema,
                budget=None if granted is None else reasond.Budget(max_total_tokens=granted),
                request_id=f"eval-{trial.key}",
                keep_running=True,
                reconnect=True,
                timeout_s=self.timeout_s,
            )
            try:
                async with stream:
                    async for _ in stream:
                        pass
            except _ENDS_ALL:
                raise
            except reasond.ReasondError as error:
                partial = stream.result
                if any(each.field == _MODEL_FIELD for each in error.violations):
                    raise
                if partial is not None:
                    return await self._read_failure(trial, partial, error)
                if not isinstance(error, _MAY_PASS):
                    return replace(trial, is_failed=True, finish=error.reason, note=error.message)
                if attempt == _ATTEMPTS:
                    raise
                await asyncio.sleep(max(error.retry_after or 0.0, wait_s))
                wait_s = min(_LONGEST_WAIT_S, 2 * wait_s)
                continue
            return _read_result(trial, stream.result)
        return trial

    async def _read_failure(self, trial: Trial, partial: Reasoning, error: reasond.ReasondError) -> Trial:
        """Return the trial of an execution that failed; the server forgets one that spent nothing."""
        failed = _read_result(trial, partial, failed=error)
        if not failed.is_unspent:
            return failed
        # Its request id would lead the next command to the same failure.
        with suppress(reasond.ReasondError):
            await self.client.delete_execution(partial.execution_id)
        return replace(failed, execution_id="")


def _read_result(trial: Trial, result: Reasoning | None, *, failed: reasond.ReasondError | None = None) -> Trial:
    if result is None:
        return replace(trial, is_failed=True, finish="NO_RESULT")
    metrics, usage = result.metrics, result.metrics.usage
    took = metrics.execution_time
    failure: dict[str, Any] = {} if failed is None else {"is_failed": True, "note": failed.message}
    return replace(
        trial,
        answer=result.answer,
        answer_json=result.answer_json,
        finish=reasond.FinishReason.Name(result.finish_reason).removeprefix("FINISH_REASON_"),
        execution_id=result.execution_id,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_input_tokens,
        calls=usage.model_calls,
        cost_usd=usage.cost_usd if usage.HasField("cost_usd") else None,
        seconds=took.seconds + took.nanos / _NANOS,
        **failure,
    )

"""The scenarios of clients/scenarios.json, and what is wrong with an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE: Final = Path(__file__).resolve().parents[2] / "clients" / "scenarios.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What the proxy does; clients/README.md describes it."""

    refuse_ms: float = 0.0
    is_silent: bool = False
    is_absent: bool = False
    statuses_cut: int = 0
    cut_at_model_call: int | None = None
    drain_at_model_call: int | None = None
    cut_seed: int | None = None
    cuts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScript:
    """What the model does; clients/README.md describes it."""

    answer: str | None = ""
    steps: int = 1
    pause_ms: float = 0.0
    error: str = ""
    calls: Sequence[Mapping[str, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One request to a driver, and what must come of it."""

    name: str
    action: str
    expect: Mapping[str, Any]
    task: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    model: ModelScript = field(default_factory=ModelScript)
    faults: Faults = field(default_factory=Faults)
    server: str = "plain"
    token: str = "valid"
    before: int = 0

    @classmethod
    def read(cls, value: Mapping[str, Any], **more: Any) -> Scenario:
        """Return the scenario of a JSON object; `more` replaces what it says.

        Raises:
            TypeError: a key is unknown.
        """
        told = dict(value)
        model, faults = ModelScript(**told.pop("model", {})), Faults(**told.pop("faults", {}))
        return cls(**{**told, "model": model, "faults": faults, **more})

    @property
    def query(self) -> str:
        """The query with the name of the scenario, by which the model knows it."""
        return f"scenario {self.name}: {self.task['query']}" if self.task.get("query") else ""

    def request(self, target: str, token: str | None, token_file: Path | None) -> dict[str, Any]:
        """Return the request to the driver."""
        return {
            "name": self.name,
            "action": self.action,
            "target": target,
            "token": token,
            "token_file": str(token_file) if token_file else None,
            "task": {**self.task, "query": self.query},
            "options": dict(self.options),
        }

    def find_problems(self, seen: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the answer, to which what server and proxy saw was added."""
        return [text for key, wanted in self.expect.items() if (text := _compare(key, wanted, seen))]


def _compare(key: str, wanted: Any, seen: Mapping[str, Any]) -> str:
    """Return what is wrong with one key, or nothing."""
    if key == "sequences_to":
        key, wanted = "sequences", list(range(1, wanted + 1))
    if key == "answer_contains":
        return "" if wanted in seen["answer"] else f"answer {seen['answer']!r} lacks {wanted!r}"
    if key == "violations_of":
        fields = [each["field"] for each in seen["violations"]]
        is_told = all(any(name in found for found in fields) for name in wanted)
        is_described = all(each["description"] for each in seen["violations"])
        return "" if is_told and is_described else f"violations {seen['violations']!r} are not those of {wanted!r}"
    if key == "retry_after_between":
        found = seen["retry_after_s"]
        return "" if found is not None and wanted[0] <= found <= wanted[1] else f"retry_after_s {found!r}: {wanted!r}"
    if key == "connections_from":
        return "" if seen["connections"] >= wanted else f"{seen['connections']} connections, not {wanted} or more"
    return "" if seen[key] == wanted else f"{key} {seen[key]!r}, not {wanted!r}"


def read_scenarios() -> list[Scenario]:
    """Return the scenarios but those of cuts."""
    return [Scenario.read(each) for each in json.loads(FILE.read_text("utf-8"))["scenarios"]]


def read_cuts() -> list[Scenario]:
    """Return the streams whose connections are cut, each with its own seed."""
    told = json.loads(FILE.read_text("utf-8"))["cuts"]
    return [
        Scenario.read(
            told["scenario"],
            name=f"{told['scenario']['name']}-{seed}",
            faults=Faults(cut_seed=seed, cuts=told["cuts_per_stream"]),
        )
        for seed in range(told["streams"])
    ]

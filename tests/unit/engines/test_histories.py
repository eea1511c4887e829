"""The workflow of repairs repeats what earlier workers did: histories of a real cluster, replayed without one."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from reasond_server.engines import workflow
from reasond_server.engines.temporal import build_converter, build_workflow_runner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json.gz"))


class KeptPayloads:
    """The payloads of one history."""

    def __init__(self, bodies: Mapping[str, str]) -> None:
        self._bodies = {name: base64.b64decode(body) for name, body in bodies.items()}

    async def put(self, _tenant: str, _execution_id: str, _bodies: Mapping[str, bytes]) -> None:
        """Keep nothing: a replay writes what is there."""

    async def read(self, _tenant: str, _execution_id: str, names: Sequence[str]) -> Mapping[str, bytes]:
        return {name: self._bodies[name] for name in names}


async def replay(path: Path) -> None:
    """Replay a history; raise an error if the workflow would do anything else today."""
    await replay_row(json.loads(gzip.decompress(await asyncio.to_thread(path.read_bytes))))


async def replay_row(row: Mapping[str, Any]) -> None:
    payloads: Any = KeptPayloads(row["payloads"])
    replayer = Replayer(
        workflows=[workflow.RepairWorkflow],
        data_converter=build_converter(payloads),
        workflow_runner=build_workflow_runner(),
    )
    await replayer.replay_workflow(WorkflowHistory.from_json(row["workflow_id"], row["history"]))


def test_there_are_histories_of_every_search_and_end() -> None:
    assert {path.name.removesuffix(".json.gz") for path in HISTORIES} == {
        *("accepted", "best_of_n", "bounded", "greedy", "lats", "model_failed", "not_accepted", "shares"),
    }


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.name.removesuffix(".json.gz"))
async def test_a_history_is_repeated(path: Path) -> None:
    await replay(path)


async def test_a_workflow_that_does_something_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "VALIDATE", "somethingElse")
    with pytest.raises(NondeterminismError):
        await replay(HISTORIES[0])


async def test_a_workflow_that_cannot_read_its_order_ends_instead_of_being_tried_for_ever() -> None:
    row = json.loads(gzip.decompress(await asyncio.to_thread(HISTORIES[0].read_bytes)))
    given = row["history"]["events"][0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
    order = Payload(metadata={"encoding": b"binary/plain"}, data=b"of another version").SerializeToString()
    name = json.loads(base64.b64decode(given[0]["data"]))["name"]
    row["payloads"][name] = base64.b64encode(order).decode()
    # It ends, which the history does not know.
    with pytest.raises(NondeterminismError, match="Fail workflow"):
        await replay_row(row)


def test_names_that_clusters_store_never_change() -> None:
    names = (
        *(workflow.WORKFLOW, workflow.MODELS, workflow.CHECKS, workflow.MEASURE_BASELINE, workflow.BOUND_TOKENS),
        *(workflow.GENERATE, workflow.REFLECT, workflow.SCORE, workflow.VALIDATE, workflow.FINALIZE, workflow.COMMIT),
    )
    assert names == (
        *("reasond.repair.v1", "models", "checks", "measureBaseline", "boundTokens"),
        *("generateCandidates", "reflectCandidates", "scoreCandidates", "validatePatch", "finalizeSolution"),
        "commitEvents",
    )

"""`reasond init` and `reasond serve --dev` are enough for a streamed answer, with servers of each kind.

Ollama and vLLM are not here: a small server answers as they do to the probes. llama.cpp is real, with a small model,
where `make test` has fetched both. OpenAI is in `test_openai_user`.
"""

from __future__ import annotations

import importlib.util
import os
import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond.v1.execution_pb2 import FinishReason
from scripts.programs import find_gguf
from scripts.stages import MODEL
from tests.engines.serving import serving_file
from tests.forking import run_forked
from tests.integration.test_cli import address_of, serving
from tests.unit.llm.openai.odd_server import Manners, odd_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 280.0
ANSWER = "Three boxes with four pens each: <answer>12</answer>"
SPOKEN = {
    "ollama": Manners(
        limits=("max_tokens",),
        stops=4,
        usage=True,
        schema="json_schema json_object",
        tools="free",
        cut_prompt=4096,
        text=ANSWER,
        documents={
            "/v1/models": {"data": [{"id": "qwen3:8b", "object": "model", "owned_by": "library"}]},
            "/api/ps": {"models": [{"name": "qwen3:8b", "model": "qwen3:8b", "context_length": 4096}]},
        },
    ),
    "vllm": Manners(
        limits=("max_tokens", "max_completion_tokens"),
        stops=4,
        match_field="stop_reason",
        usage=True,
        schema="json_schema json_object",
        reasoning_field="reasoning",
        tools="free",
        text=ANSWER,
        documents={
            "/tokenize": {"count": 7},
            "/v1/models": {"data": [{"id": "Qwen/Qwen3-8B", "owned_by": "vllm", "max_model_len": 32768}]},
        },
    ),
}


@contextmanager
def llama_server(folder: Path) -> Iterator[str]:
    path = find_gguf(MODEL.rpartition("=")[2])
    if not (path.exists() and importlib.util.find_spec("xllamacpp")):
        pytest.skip("xllamacpp or its small model is not here (make test fetches them)")
    with serving_file(path, folder=folder, slots=1, window=4096) as engine:
        yield engine.base_url


@pytest.mark.parametrize("kind", [*SPOKEN, "llamacpp"])
def test_two_commands_are_enough_for_a_streamed_answer(kind: str, tmp_path: Path) -> None:
    told = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with odd_server(SPOKEN[kind]) if kind in SPOKEN else llama_server(tmp_path) as base_url:
        first = run_forked("init", "--url", base_url, environ=told, folder=tmp_path)
        assert first.returncode == 0, first.stdout + first.stderr
        assert "reasond serve --dev" in first.stdout
        written = (tmp_path / "config.toml").read_text("utf-8")
        assert tomllib.loads(written)["llm"]["profile"] == kind
        with serving(tmp_path, "--dev", environ=told):
            found = address_of(tmp_path)
            with reasond.Client(found["grpc"], token=found["token"], timeout_s=LIMIT_S) as client:
                config = {"max_tokens": 100, "temperature": 0.0}
                stream = client.reason_iterations(
                    "Tom has 3 boxes with 4 pens each. How many pens?",
                    strategy="chain_of_thought",
                    config=config,
                    include_deltas=True,
                )
                events = [event.WhichOneof("event") for event in stream]
                result: Any = stream.result
    assert "delta" in events
    assert FinishReason.Name(result.finish_reason) != "FINISH_REASON_FAILED"
    assert result.metrics.usage.output_tokens > 0
    if kind in SPOKEN:
        assert result.answer == "12"

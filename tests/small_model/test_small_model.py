"""A real model of 135 million parameters through every strategy, a turn, a repair and every wire.

It is nearly always wrong, and copies what it is shown: each run must end with an answer or a named reason, and nothing
of the server's own words may come back as the answer. A real engine writes another text whenever its batches are filled
in another way, so each test holds for any text.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from reasond import AsyncClient, Budget, ReasondError, client_tool, repair_task
from reasond.v1.execution_pb2 import FinishReason
from reasond.v1.repairs_pb2 import Check, ResultFormat
from reasond_server.context.tags import RESERVED_TAGS
from reasond_server.dialects.answer_marks import EXAMPLE_ANSWER
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import find_profile
from reasond_server.testing import running_server_in_thread
from scripts.programs import find_gguf
from scripts.stages import MODEL
from tests.conftest import IN_CI
from tests.engines.recording import Recording
from tests.engines.serving import serving_file
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.assembly.app import Listening

WINDOW: Final = 2048
STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "direct": {"max_tokens": 100},
    "chain_of_thought": {"max_tokens": 150, "temperature": 0.0},
    "self_consistency": {"max_tokens": 100, "samples": 2},
    "best_of_n": {"max_tokens": 100, "samples": 2, "max_judge_tokens": 100},
    "self_aggregation": {"max_tokens": 100, "chains": 2, "group": 2, "rounds": 2},
    "plan_and_solve": {"max_tokens": 100, "max_plan_tokens": 100, "temperature": 0.0},
    "self_refine": {"max_tokens": 100, "max_critique_tokens": 100, "max_rounds": 1},
    "chain_of_verification": {"max_tokens": 100, "max_check_tokens": 100, "max_questions": 1},
    "tree_of_thought": {"max_depth": 2, "branching": 2, "max_tokens_per_thought": 64, "max_model_calls": 8},
    "program_of_thought": {"max_tokens": 150, "max_attempts": 2},
    "bounded_context": {"chunk_size": 1280, "carryover_size": 512, "max_iterations": 1, "temperature": 0.0},
    "react": {"max_tokens_per_step": 100, "max_iterations": 2, "allow_tool_use": True, "temperature": 0.0},
}
QUESTION: Final = "Tom has 3 boxes with 4 pens each. How many pens has Tom?"
MATERIAL: Final = " ".join(f"In street {number} there are {number % 5 + 2} shops and a well." for number in range(24))
TAG: Final = re.compile(rf"</?(?:{'|'.join(RESERVED_TAGS)}) [a-z]{{16,64}}|</?(?:answer|continue|action|think)\b")
"""Marks of fences and tags of the protocol; the bare name of a section is the model's own text."""
SPOKEN: Final = re.compile(r"(?:```|~~~).*?(?:```|~~~|\Z)|`[^`\n]*`|(?<=[\w,:] )<[^<>]*>(?= [a-z])", re.DOTALL)
"""Code, and tags in the middle of a sentence, which an answer may have (decision 0074)."""
BROKEN_FORM: Final = "MODEL_PROTOCOL"
"""The named end of a turn whose model broke the form of calls each time."""
FENCED: Final = re.compile(r"<(\w+) ([a-z]{16,64})[^<>]*>.*?</\1 \2>", re.DOTALL)
SETTINGS: Final = {
    "REASOND__REASONING__PROGRAM_ENVIRONMENT": "python",
    "REASOND__TURNS__MAX_TOKENS": "100",
    "REASOND__REPAIR__ENABLED": "true",
    "REASOND__REPAIR__MAX_TOKENS": "256",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__ROOT": sys.prefix,
    "REASOND__REPAIR__COMMANDS__SCRIPT": '["python", "check.py"]',
}
LIMIT_S: Final = 280.0
"""Ends what hangs; on a quiet machine a run takes a few seconds."""
LIKELY_OURS: Final = 24
"""Characters of a line from which on it is no line that anybody writes by chance."""


class Small:
    """A server with the small model, and what it said to it."""

    def __init__(self, listening: Listening, recording: Recording) -> None:
        self.listening = listening
        self._recording = recording

    def client(self) -> AsyncClient:
        return AsyncClient(self.listening.grpc, token=self.listening.token)

    async def post(self, path: str, body: Any) -> str:
        headers = {"authorization": f"Bearer {self.listening.token}"}
        async with make_http_client(base_url=self.listening.http, headers=headers) as client:
            response = await client.post(path, json=body)
        assert response.status_code < 500, response.text
        return response.text

    def list_ours(self) -> set[str]:
        """Return the lines and sentences of the prompts since the last look that stand in no fence, as ours do.

        A prompt without a fence, as that of `direct`, has no word of ours; and what a correction quotes is the model's.
        """
        ours, written = set[str](), ""
        for (request, _), text in zip(self._recording.calls, self._recording.texts, strict=True):
            if any(FENCED.search(each.content) for each in request.messages):
                asked = [FENCED.sub("", each.content) for each in request.messages if each.role != "assistant"]
                lines = {line.strip() for each in asked for line in re.split(r"\n|(?<=[.:?!]) ", each)}
                ours |= {line for line in lines if len(line) >= LIKELY_OURS and line not in written}
            written += f"{text}\n"
        self._recording.calls.clear()
        self._recording.texts.clear()
        return ours

    def check(self, answer: str, *, is_answered: bool) -> None:
        """Assert that an answer is one, and that nothing in it is ours."""
        assert answer.strip() or not is_answered
        answer = SPOKEN.sub("", answer)
        assert not TAG.search(answer), answer
        assert EXAMPLE_ANSWER not in answer, answer
        assert not [line for line in self.list_ours() if line in answer], answer


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    requirement, _, digest = MODEL.removeprefix("gguf:").rpartition("=")
    path = find_gguf(digest)
    if not (path.exists() and importlib.util.find_spec("xllamacpp")):
        message = f"xllamacpp or the model of {requirement} is not here (make test fetches them)"
        if IN_CI:
            pytest.fail(message)
        pytest.skip(message)
    with serving_file(path, folder=tmp_path_factory.mktemp("small"), slots=4, window=WINDOW) as engine:
        profile = find_profile("any", "", "llamacpp")
        recording = Recording(
            build_model(BackendOptions(name="small", model="small", base_url=engine.base_url, profile=profile))
        )
        with running_server_in_thread(model=recording, environ=SETTINGS) as listening:
            yield Small(listening, recording)


async def test_every_strategy_is_tried(small: Small) -> None:
    async with small.client() as client:
        listed = await client.list_strategies()
    assert {each.name for each in listed.strategies} == STRATEGIES.keys()


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_strategy_ends_with_an_answer_or_a_reason(small: Small, strategy: str) -> None:
    material = MATERIAL if strategy == "bounded_context" else ""
    async with small.client() as client:
        found = await client.reason(
            QUESTION, strategy=strategy, config=STRATEGIES[strategy], material=material, timeout_s=LIMIT_S
        )
    finish = FinishReason.Name(found.finish_reason)
    assert finish not in {"FINISH_REASON_UNSPECIFIED", "FINISH_REASON_FAILED"}
    small.check(found.answer, is_answered="ANSWERED" in finish)


async def test_json_rpc_ends_with_an_answer_or_a_reason(small: Small) -> None:
    params = {
        "auth_token": small.listening.token,
        "query": QUESTION,
        "strategy": "chain_of_thought",
        "strategy_config": {"max_tokens": 100},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    told = json.loads(await small.post("/api/v1/jsonrpc", body))
    assert "error" not in told, told
    small.check(told["result"]["answer"], is_answered=False)


TOOLS: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Final = {"name": "weather", "description": "Tells the weather of a city.", "parameters": TOOLS}


@pytest.mark.parametrize(
    ("model", "is_streamed", "tools"),
    [
        ("reasond/chain_of_thought", False, []),
        ("reasond/self_consistency", True, []),
        ("reasond/react", True, []),
        ("reasond", True, [{"type": "function", "function": TOOL}]),
    ],
)
async def test_chat_completions_end_with_an_answer_or_a_reason(
    small: Small, *, model: str, tools: Sequence[Any], is_streamed: bool
) -> None:
    asked = [{"role": "user", "content": "What is the weather in Rome?" if tools else QUESTION}]
    body = {"model": model, "messages": asked, "max_tokens": 200, "stream": is_streamed}
    told = await small.post("/v1/chat/completions", {**body, "tools": tools} if tools else body)
    if '"error":' in told and BROKEN_FORM in told:
        assert tools
        return
    events = [line.removeprefix("data: ") for line in told.split("\n") if line.startswith("data: {")]
    parts = [choice for event in (events if is_streamed else [told]) for choice in json.loads(event)["choices"]]
    said = [part.get("delta") or part.get("message") or {} for part in parts]
    finish = [part["finish_reason"] for part in parts if part["finish_reason"]]
    assert len(finish) == 1
    has_more = any(each.get("tool_calls") for each in said)
    answer = "".join(each.get("content") or "" for each in said)
    small.check(answer, is_answered=finish == ["stop"] and not has_more)


@pytest.mark.parametrize("tools", [[], [{"type": "function", **TOOL}]])
async def test_responses_end_with_an_answer_or_a_reason(small: Small, tools: Sequence[Any]) -> None:
    body = {"model": "reasond/chain_of_thought", "input": QUESTION, "max_output_tokens": 200, "stream": True}
    told = await small.post("/v1/responses", {**body, "tools": tools} if tools else body)
    events = [json.loads(line.removeprefix("data: ")) for line in told.split("\n") if line.startswith("data: {")]
    last = events[-1]
    if tools and BROKEN_FORM in told:
        assert last["type"] in {"response.failed", "error"}
        return
    assert last["type"] in {"response.completed", "response.incomplete"}
    texts = [
        part["text"] for item in last["response"]["output"] if item["type"] == "message" for part in item["content"]
    ]
    shown = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    # A sentence of ours may be streamed before it is known for one; the whole text is without it.
    assert not TAG.search(SPOKEN.sub("", shown)), shown
    small.check("\n".join(texts), is_answered=False)


async def test_a_turn_ends_with_an_answer_or_a_reason(small: Small) -> None:
    asked: list[str] = []

    @client_tool
    def weather(city: str) -> str:
        """Tells the weather of a city."""
        asked.append(city)
        return "It rains."

    async with small.client() as client:
        for text in ("What is the weather in Rome?", "And tomorrow?"):
            try:
                done = await client.turn(text, session="small", tools=[weather], budget=Budget(max_model_calls=4))
            except ReasondError as error:
                assert error.reason == BROKEN_FORM  # noqa: PT017 - any other end is told by the result
                continue
            finish = FinishReason.Name(done.finish_reason)
            assert finish != "FINISH_REASON_UNSPECIFIED"
            assert done.answer or done.warnings
            small.check(done.answer, is_answered="ANSWERED" in finish)


async def test_a_repair_ends_with_a_reason(small: Small) -> None:
    files = {
        "calc.py": "def add(a, b):\n    return a - b\n",
        "check.py": "from calc import add\n\nassert add(2, 3) == 5\n",
    }
    check = Check(name="script", argv=["python", "check.py"], format=ResultFormat.RESULT_FORMAT_EXIT_CODE)
    config = {"max_candidates": 1}
    task = repair_task("The sum is wrong.", files=files, environment="python", checks=[check], config=config)
    async with small.client() as client:
        done = await client.repair(task, timeout_s=LIMIT_S)
    assert done.is_accepted == bool(done.patch)
    assert not [line for line in small.list_ours() if line in done.patch]

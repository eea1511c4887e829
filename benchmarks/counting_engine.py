"""A llama.cpp whose model writes without end, called without its chat parser: tokens and CPU seconds per call.

The model walks at random over nine words; the words of our prompts are single tokens, as in real models. The server's
chat endpoint parses the whole reply again at every token, which takes longer than attention for long replies and would
make one long pass look slower than it is. So both sides call `/completion`, which parses nothing, with the prompt that
the server itself builds from the messages (`/apply-template`).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from bisect import bisect_left
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from reasond_server.context.carryover import SUMMARY_REQUEST
from reasond_server.context.window_plan import WindowLimits
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, Role, Text, WrappedModel
from reasond_server.llm.openai.backend_options import BackendOptions, Timeouts
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import find_profile
from reasond_server.types import CarryoverMode, Usage
from tests.engines import markov
from tests.engines.serving import Engine, running_engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from reasond_server.llm.model import ChatModel, ModelEvent

# Four characters each: our estimate of one token per word is then exact, so that notes of m tokens have m words.
WORDS = (" far", " low", " old", " new", " red", " dry", " big", " few", " odd")
MOST_WORDS = 120
CLOCK_EVERY = 100
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a run: its usage, whether it made a summary, and the engine's CPU seconds since the run began."""

    usage: Usage
    is_summary: bool
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A single pass: the tokens of its prompt, and the engine's CPU seconds by the number of words written."""

    prompt_tokens: int
    words: Sequence[int] = (0,)
    cpu_s: Sequence[float] = (0.0,)

    def after(self, written: int) -> float:
        """Return the CPU seconds at the moment when the pass had written so many tokens, to 100 tokens."""
        return self.cpu_s[min(bisect_left(self.words, written), len(self.cpu_s) - 1)]


class Completing(WrappedModel["ChatModel"]):
    """The model of `engine`, called over `/completion`; prompts are counted as the wrapped model counts them."""

    def __init__(self, *, model: ChatModel, engine: Engine, session: aiohttp.ClientSession) -> None:
        super().__init__(model=model)
        self._engine = engine
        self._session = session

    def cpu_s(self) -> float:
        """Return the CPU seconds of the engine so far, to 10 ms."""
        fields = Path(f"/proc/{self._engine.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the engine.

        Raises:
          SystemExit: the token count differs from that of the chat endpoint.
        """
        messages = [{"role": message.role.value, "content": message.content} for message in request.messages]
        async with self._session.post("/apply-template", json={"messages": messages}) as response:
            prompt = (await response.json())["prompt"]
        body = {
            "prompt": prompt,
            "n_predict": request.max_tokens,
            "temperature": request.temperature,
            "stop": list(request.stop),
            "stream": True,
            "cache_prompt": True,
        }
        async with self._session.post("/completion", json=body) as response:
            async for line in response.content:
                if not line.startswith(b"data: "):
                    continue
                event = json.loads(line[6:])
                if event["content"]:
                    yield Text(text=event["content"])
                if event["stop"]:
                    yield self._finish(event, await self.count_exactly(request.messages))

    @staticmethod
    def _finish(event: dict[str, Any], counted: int | None) -> Finished:
        if event["tokens_evaluated"] != counted:
            raise SystemExit(f"/completion was sent {event['tokens_evaluated']} tokens, chat would be sent {counted}")
        usage = Usage(
            input_tokens=event["tokens_evaluated"],
            output_tokens=event["tokens_predicted"],
            cached_input_tokens=event["timings"]["cache_n"],
            model_calls=1,
        )
        return Finished(
            reason=ModelFinish.LENGTH if event["stop_type"] == "limit" else ModelFinish.STOP,
            usage=usage,
            matched_stop=event["stopping_word"] or None,
        )


class Recording(WrappedModel[Completing]):
    """Passes calls on and records them."""

    def __init__(self, *, model: Completing) -> None:
        super().__init__(model=model)
        self._begun_s = model.cpu_s()
        self.calls: list[Call] = []

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model."""
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    is_summary = request.messages[-1].content == SUMMARY_REQUEST
                    cpu_s = self._model.cpu_s() - self._begun_s
                    self.calls.append(Call(usage=event.usage, is_summary=is_summary, cpu_s=cpu_s))
                yield event


def prompt_words() -> tuple[str, ...]:
    """Return the words that occur in every prompt, longest first, as many as fit into the vocabulary."""
    said = f"{SUMMARY_REQUEST} " + " ".join(
        WindowLimits(chunk_size=1, carryover_size=1, max_segments=1, max_iterations=1, carryover_mode=mode).rules
        for mode in CarryoverMode
    )
    words = set(re.findall(r" ?[A-Za-z]{2,}", said)) - set(WORDS)
    return tuple(sorted(words, key=lambda word: (-len(word), word))[:MOST_WORDS])


@asynccontextmanager
async def engine_model(window: int) -> AsyncIterator[Completing]:
    """Run a llama.cpp server whose model never ends its reply and does not repeat itself for long."""
    walk = tuple(markov.Saying(words=(one,), back_to=other) for one in WORDS for other in WORDS)
    markov.CHAINS = {"wander": walk}
    markov.TRAINED_WINDOW = window  # the engine caps its window at this
    markov.KNOWN = prompt_words()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_engine("wander", folder=Path(folder), slots=1, window=window) as engine,
    ):
        profile = replace(find_profile("wander", engine.base_url, "llamacpp"), context_window=window)
        options = BackendOptions(
            name="engine", model="wander", base_url=engine.base_url, profile=profile, timeouts=Timeouts(total_s=3600.0)
        )
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(force_close=True)  # the engine closes idle connections
        async with (
            aiohttp.ClientSession(engine.address, timeout=timeout, connector=connector) as session,
            aclosing(build_model(options)) as model,
        ):
            yield Completing(model=model, engine=engine, session=session)


async def plain(model: Completing, question: str, tokens: int) -> Pass:
    """Write `tokens` in one pass.

    Raises:
      SystemExit: the engine's token count differs from ours, so that the CPU seconds would be at wrong places.
    """
    messages = (Message(role=Role.SYSTEM, content="Think step by step."), Message(role=Role.USER, content=question))
    words, cpu_s, begun_s, heard = [0], [0.0], model.cpu_s(), 0
    async with aclosing(model.stream(ChatRequest(messages=messages, max_tokens=tokens, temperature=1.0))) as events:
        async for event in events:
            if isinstance(event, Text):
                heard += event.text.count(" ")
            if isinstance(event, Finished):
                usage = event.usage
            if heard >= words[-1] + CLOCK_EVERY or isinstance(event, Finished):
                words.append(heard)
                cpu_s.append(model.cpu_s() - begun_s)
    if usage.output_tokens != heard:
        raise SystemExit(f"the engine counted {usage.output_tokens} tokens, {heard} words came")
    return Pass(prompt_tokens=usage.input_tokens, words=words, cpu_s=cpu_s)

"""Turns of the simulation: what their model replies, and the tools, limits and policy of the servers."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.counting.requests import count_request, render_call
from reasond_server.llm.model import Finished, ModelFinish, Role, Text
from reasond_server.tools.tool import ModelledTool, ToolArguments, ToolContext, ToolFailedError
from reasond_server.turns.policy import Mode, OnToolFailure, OnUnknownOutcome, Synthesis, TurnContext, TurnPolicy
from reasond_server.types import Budget, ToolCall, Usage
from reasond_server.types.turns import ClientTool, ContextBlock, ContextScope, TurnStart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatRequest, ModelEvent
    from tests.simulation.processes import Process
    from tests.simulation.world import World

CLIENT_TOOL: Final = ClientTool(
    name="open_file",
    description="Opens a file.",
    parameters_json='{"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}',
)
WELCOME: Final = "welcome-to-"
_MARK: Final = re.compile(r"\[(\w+)#(\d+)\.(\d+)\]")
_TOOLS: Final = ("transfer", "transfer", "look_up", "look_up", "wire", "secret", "open_file", "open_file")
_OTHER_CALLS: Final = ("mode_state_change", "failing", "bad", "nosuch", "rows")


def policy_by_chance(chance: random.Random, *, retention_s: float) -> TurnPolicy:
    """Return the policy of all servers of one simulation; a session is kept at least as long as its turns."""
    modes = {
        "default": Mode(tools=("transfer", "look_up", "wire"), welcome=chance.choice(("", f"{WELCOME}default"))),
        "ops": Mode(instructions="Be terse.", tools=("look_up", "secret", "wire"), welcome=f"{WELCOME}ops"),
    }
    return TurnPolicy(
        modes=modes,
        needs_approval=("wire",),
        max_model_calls=chance.choice((3, 50, 50)),
        max_tool_calls=chance.choice((3, 50, 50)),
        tool_parallelism=chance.choice((1, 1, 4)),
        samples=chance.choice((1, 1, 3)),
        on_tool_failure=chance.choice((OnToolFailure.STOP, OnToolFailure.TELL)),
        on_unknown_outcome=chance.choice((OnUnknownOutcome.FAIL, OnUnknownOutcome.ASK)),
        handoff_ttl_s=chance.choice((15.0, 60.0, 120.0)),
        max_active_s=chance.choice((600.0, 600.0, 60.0)),
        session_retention_s=max(retention_s, chance.choice((100_000.0, 60.0, 5.0))),
        max_tokens=512,
        context=TurnContext(synthesis=chance.choice((Synthesis.NEVER, Synthesis.WHEN_REDUCED, Synthesis.ALWAYS))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScript:
    """One turn as its client asks for it; `replies` names the calls of each reply of the model, `tag` is in all."""

    tag: str
    start: TurnStart
    replies: Sequence[Sequence[str]] = field(default_factory=tuple)

    @property
    def passing(self) -> Sequence[str]:
        """The texts that stand only in the prompts up to the first reply."""
        return [block.text for block in self.start.context if block.scope is ContextScope.TURN]


def script_by_chance(tag: str, session_id: str, chance: random.Random) -> TurnScript:
    """Return a turn of the session."""
    replies = [
        [chance.choice(_TOOLS if chance.random() < 0.85 else _OTHER_CALLS) for _ in range(chance.choice((1, 1, 2, 3)))]
        for _ in range(chance.choice((0, 1, 1, 2, 3, 4)))
    ]
    blocks = [ContextBlock(name=f"p{tag}", scope=ContextScope.TURN, text=f"passing-{tag}.")]
    if chance.random() < 0.4:
        blocks.append(ContextBlock(name="lasting", scope=ContextScope.SESSION, text=f"lasting-{tag}."))
    budget = Budget(
        max_total_tokens=chance.choice((None, None, 7_000, 8_000, 12_000)),
        max_model_calls=chance.choice((None, None, None, 2, 4)),
        max_tool_calls=chance.choice((None, None, None, 2)),
    )
    start = TurnStart(
        message=f"turn {tag}",
        session_id=session_id,
        if_revision=chance.choice((None, None, None, None, 0, 3)) if session_id else None,
        mode=chance.choice((None, None, None, "ops")),
        client_tools=(CLIENT_TOOL,),
        context=tuple(blocks),
        budget=budget,
    )
    return TurnScript(tag=tag, start=start, replies=replies)


def marks_of(text: str) -> Sequence[tuple[str, int, int]]:
    """Return the marks in a text: turn, number of the reply in the turn, number of the call that got it."""
    return [(turn, int(index), int(attempt)) for turn, index, attempt in _MARK.findall(text)]


def count_replies(request: ChatRequest, turn_id: str) -> int:
    """Return how many replies of the turn its prompt shows."""
    said = [message.content for message in request.messages if message.role is Role.ASSISTANT]
    return len({index for text in said for turn, index, _ in marks_of(text) if turn == turn_id})


def reply_to_turn(
    request: ChatRequest, script: TurnScript, turn_id: str, index: int, attempt: int
) -> tuple[Sequence[ModelEvent], bool]:
    """Return what the model says, within `max_tokens`, and whether that is cut; each attempt says something else."""
    counter = WordPieceCounter()
    text = f"[{turn_id}#{index}.{attempt}] I go on."
    names = script.replies[index] if index < len(script.replies) and request.tool_choice != "none" else ()
    offered = {tool.name for tool in request.tools}
    calls = [
        call
        for place, name in enumerate(names)
        if (call := _call(name, turn_id, f"{index}/{place}/{attempt}")).name in offered
        or name == "nosuch"
        # Sometimes the model calls what it was not offered in this mode.
        or random.Random(f"{turn_id} {index} {place}").random() < 0.1  # noqa: S311 - a seeded, repeatable sequence
    ]
    written = counter.count_text(text) + sum(counter.count_text(render_call(call)) for call in calls)
    is_cut = written > request.max_tokens
    if is_cut:
        calls, text = [], counter.head(text, request.max_tokens)
        written = counter.count_text(text)
    usage = Usage(input_tokens=count_request(request, counter), output_tokens=written, model_calls=1)
    reason = ModelFinish.LENGTH if is_cut else ModelFinish.TOOL_CALLS if calls else ModelFinish.STOP
    return [Text(text=text), *calls, Finished(reason=reason, usage=usage)], is_cut


def _call(name: str, turn_id: str, where: str) -> ToolCall:
    """Return a call; all calls have the same id, as those of some providers."""
    arguments: dict[str, object] = {"of": f"{turn_id}/{where}"}
    if name == "mode_state_change":
        arguments = {"mode": "ops" if where.endswith("0") else "default"}
    elif name == "open_file":
        arguments = {"path": f"{turn_id}/{where}"} if not where.startswith("2/") else {"wrong": 1}
    elif name == "bad":
        name, arguments = "look_up", {"wrong": where}
    elif name == "failing":
        name, arguments["fails"] = "transfer", True
    elif name == "rows":
        name, arguments["rows"] = "look_up", 60
    return ToolCall(call_id="call_0", name=name, arguments_json=json.dumps(arguments))


class EffectArguments(ToolArguments):
    """What the tools of turns get."""

    of: str
    fails: bool = False
    rows: int = 0


class EffectTool(ModelledTool[EffectArguments]):
    """A tool with an effect, after which the process may die."""

    name: ClassVar[str] = "transfer"
    description: ClassVar[str] = "Does something."
    arguments_type: ClassVar[type[ToolArguments]] = EffectArguments

    def __init__(self, world: World, process: Process, name: str, *, is_idempotent: bool) -> None:
        self._world = world
        self._process = process
        self.name = name  # type: ignore[misc]  # a class variable of others, this test's own here
        self.is_idempotent = is_idempotent

    async def call(self, arguments: EffectArguments, context: ToolContext) -> object:
        """Cause the effect."""
        world, turn_id = self._world, context.execution_id
        what = f"the tool call {context.call_id} of {turn_id}"
        world.require_right(self._process, turn_id, what)
        world.turns.begin_effect(turn_id, context, tool=self.name, of=arguments.of)
        await world.latency(0.5)
        await self._process.point("tool called")
        world.turns.count_effect(turn_id, context.call_id, is_idempotent=self.is_idempotent)
        await self._process.point("tool answers")
        await world.latency(0.5)
        if arguments.fails:
            raise ToolFailedError("it does not work")
        if arguments.rows:
            return [{"id": f"{arguments.of}-{row}", "status": "ok"} for row in range(arguments.rows)]
        return {"of": arguments.of}


def make_tools(world: World, process: Process) -> Sequence[EffectTool]:
    """Return the tools of the server for turns."""
    names = {"transfer": False, "look_up": True, "wire": False, "secret": False}
    return [EffectTool(world, process, name, is_idempotent=can_repeat) for name, can_repeat in names.items()]


class CountedPermit:
    """A permit of a caller that knows the others of its process."""

    def __init__(self, held: dict[CountedPermit, None], name: str) -> None:
        self.name = name
        self._held = held
        held[self] = None

    def release(self) -> None:
        """See Releasable."""
        self._held.pop(self, None)


class CountedLimits:
    """The limits of callers, without a limit: they count the permits of a process."""

    def __init__(self, world: World) -> None:
        self.held: dict[CountedPermit, None] = {}
        self._world = world

    async def admit(self, _caller: Any, _kind: str) -> CountedPermit:
        """Return a permit."""
        return CountedPermit(self.held, self._world.new_id("permit"))

    async def carry_over(self, _tenant: str, _subject: str, name: str, _fence: int) -> CountedPermit | None:
        """Return a permit for a run that was taken over, if it had one."""
        return CountedPermit(self.held, name) if name.startswith("permit") else None

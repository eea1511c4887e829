"""The sides that turn_races.py compares, each run by the interpreter of its own environment.

`python -m benchmarks.race_sides SIDE start PLACE EFFECTS` runs an agent until it waits for the answer to one tool call,
and keeps its state at PLACE: the address of a database for reasond, else a folder. `... resume ...` says that it is
ready, waits for a line of standard input, and then goes on with the state and the answer: the model calls the tool
`transfer`, which adds a line to the file EFFECTS, and answers. Packages are imported by name, because each side has
only its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

OURS, GRAPH, PYDANTIC, AGENTS = "reasond", "LangGraph", "pydantic-ai", "openai-agents"
QUESTION: Final = "Ask the user, then transfer 10."
ASK, TRANSFER = "ask_user", "transfer"
CALL_ID: Final = "call_0"
DONE: Final = "done"
# A transfer takes a while, as outside of benchmarks; both workers are at work then.
TRANSFER_S: Final = 0.5


async def transfer_once(effects: Path) -> str:
    """Do what must not be done twice."""
    with effects.open("a", encoding="utf-8") as file:
        file.write("transferred\n")
    await asyncio.sleep(TRANSFER_S)
    return "transferred"


class PydanticSide:
    """An agent of pydantic-ai whose first tool needs an approval; its messages are the state."""

    def __init__(self, place: str, effects: Path) -> None:
        self._state = Path(place) / "messages.json"
        self._package = import_module("pydantic_ai")
        self._messages = import_module("pydantic_ai.messages")
        model = import_module("pydantic_ai.models.function").FunctionModel(self._reply)
        self._agent = self._package.Agent(model, output_type=[str, self._package.DeferredToolRequests])

        async def transfer() -> str:
            """Transfer 10."""
            return await transfer_once(effects)

        def ask_user() -> str:
            """Ask the user."""
            return "yes"

        self._agent.tool_plain(requires_approval=True)(ask_user)
        self._agent.tool_plain(transfer)

    def _reply(self, messages: Any, _info: Any) -> Any:  # noqa: ANN401 - classes of pydantic-ai
        parts = [part for message in messages for part in message.parts]
        done = sum(isinstance(part, self._messages.ToolReturnPart) for part in parts)
        if done < len((ASK, TRANSFER)):
            call = self._messages.ToolCallPart((ASK, TRANSFER)[done], {}, tool_call_id=f"call_{done}")
            return self._messages.ModelResponse(parts=[call])
        return self._messages.ModelResponse(parts=[self._messages.TextPart(DONE)])

    async def start(self) -> None:
        """Run until the approval is asked for."""
        self._state.write_bytes((await self._agent.run(QUESTION)).all_messages_json())

    async def resume(self) -> str:
        """Approve and go on."""
        messages = self._messages.ModelMessagesTypeAdapter.validate_json(self._state.read_bytes())
        results = self._package.DeferredToolResults(approvals={CALL_ID: True})
        return str((await self._agent.run(message_history=messages, deferred_tool_results=results)).output)


class AgentsSide:
    """An agent of openai-agents whose first tool needs an approval; its RunState is the state."""

    def __init__(self, place: str, effects: Path) -> None:
        self._state = Path(place) / "state.json"
        self._package = package = import_module("agents")
        package.set_tracing_disabled(disabled=True)
        model = type("Model", (import_module("agents.models.interface").Model,), {"get_response": self._respond})
        # The class has an abstract method for streams, which nobody calls here.
        model.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # every abstract class has it

        async def transfer() -> str:
            """Transfer 10."""
            return await transfer_once(effects)

        def ask_user() -> str:
            """Ask the user."""
            return "yes"

        tools = [package.function_tool(ask_user, needs_approval=True), package.function_tool(transfer)]
        self._agent = package.Agent(name="bank", model=model(), tools=tools)

    async def _respond(self, _model: object = None, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - of openai-agents
        said = args[1] if len(args) > 1 else named["input"]
        items = said if isinstance(said, list) else []
        done = sum(item.get("type") == "function_call_output" for item in items)
        responses = import_module("openai.types.responses")
        output: Any
        if done < len((ASK, TRANSFER)):
            output = responses.ResponseFunctionToolCall(
                type="function_call",
                name=(ASK, TRANSFER)[done],
                arguments="{}",
                call_id=f"call_{done}",
                id=f"fc_{done}",
            )
        else:
            text = responses.ResponseOutputText(type="output_text", text=DONE, annotations=[])
            output = responses.ResponseOutputMessage(
                type="message", id="msg", role="assistant", status="completed", content=[text]
            )
        return self._package.ModelResponse(output=[output], usage=self._package.Usage(), response_id=None)

    async def start(self) -> None:
        """Run until the approval is asked for."""
        result = await self._package.Runner.run(self._agent, QUESTION)
        self._state.write_text(json.dumps(result.to_state().to_json()), encoding="utf-8")

    async def resume(self) -> str:
        """Approve and go on."""
        known = json.loads(self._state.read_text(encoding="utf-8"))
        state = await self._package.RunState.from_json(self._agent, known)
        for asked in state.get_interruptions():
            state.approve(asked)
        return str((await self._package.Runner.run(self._agent, state)).final_output)


class GraphSide:
    """A graph of LangGraph whose first node interrupts; the checkpoints of a SQLite file are the state."""

    def __init__(self, place: str, effects: Path) -> None:
        self._file = Path(place) / "graph.db"
        self._effects = effects
        self._config = {"configurable": {"thread_id": "one"}}
        self._types = import_module("langgraph.types")

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Any, None]:
        package = import_module("langgraph.graph")

        async def ask_user(_state: dict[str, str]) -> dict[str, str]:
            return {"answer": self._types.interrupt(QUESTION)}

        async def transfer(_state: dict[str, str]) -> dict[str, str]:
            await transfer_once(self._effects)
            return {"answer": DONE}

        graph = package.StateGraph(dict)
        graph.add_node(ASK, ask_user)
        graph.add_node(TRANSFER, transfer)
        graph.add_edge(package.START, ASK)
        graph.add_edge(ASK, TRANSFER)
        saver = import_module("langgraph.checkpoint.sqlite.aio").AsyncSqliteSaver
        async with saver.from_conn_string(str(self._file)) as checkpointer:
            yield graph.compile(checkpointer=checkpointer)

    async def start(self) -> None:
        """Run until the interrupt."""
        async with self._open() as graph:
            await graph.ainvoke({"answer": ""}, self._config)

    async def resume(self) -> str:
        """Answer and go on."""
        async with self._open() as graph:
            said = await graph.ainvoke(self._types.Command(resume="yes"), self._config)
        return str(said["answer"])


class OurSide:
    """A turn of reasond with a tool of its client; the log in the database at `place` is the state."""

    def __init__(self, place: str, effects: Path) -> None:
        self._url = place
        self._effects = effects
        self._state = effects.with_suffix(".reentry.json")

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[Any, None]:
        turning, suspended = import_module("benchmarks.turning"), import_module("benchmarks.suspended")
        tool = import_module("reasond_server.tools.tool")
        effects = self._effects

        class Transfer(tool.ModelledTool[tool.ToolArguments]):  # type: ignore[name-defined,misc]  # imported by name
            name = TRANSFER
            description = "Transfers 10."
            arguments_type = tool.ToolArguments

            async def call(self, _arguments: object, _context: object) -> object:
                return await transfer_once(effects)

        async with (
            suspended.open_store(self._url, "", 100) as store,
            turning.open_turns(store, [(ASK, "{}"), (TRANSFER, "{}")], tools=[Transfer()]) as core,
        ):
            yield core

    async def start(self) -> None:
        """Run until the hand-off."""
        turns, caller = import_module("reasond_server.types.turns"), import_module("benchmarks.turning").CALLER
        asked = turns.ClientTool(name=ASK, description="Asks the user.", parameters_json='{"type": "object"}')
        async with self._open() as core:
            view = await core.turns.run(caller, turns.TurnStart(message=QUESTION, client_tools=(asked,)))
        state = {"turn_id": view.turn.turn_id, "etag": view.turn.handoff.etag}
        self._state.write_text(json.dumps(state), encoding="utf-8")

    async def resume(self) -> str:
        """Send the result and go on."""
        types, caller = import_module("reasond_server.types"), import_module("benchmarks.turning").CALLER
        result = types.ToolResult(call_id="c1", result_json='"yes"')
        known = json.loads(self._state.read_text(encoding="utf-8"))
        reentry = import_module("reasond_server.types.turns").TurnReentry(**known, results=(result,))
        async with self._open() as core:
            return str((await core.turns.run(caller, reentry)).result.answer)


SIDES: Final[Mapping[str, Callable[[str, Path], Any]]] = {
    OURS: OurSide,
    GRAPH: GraphSide,
    PYDANTIC: PydanticSide,
    AGENTS: AgentsSide,
}


def main() -> None:
    """Start, or resume when told, and print the answer."""
    name, task, place, effects = sys.argv[1:]
    side = SIDES[name](place, Path(effects))
    if task == "start":
        asyncio.run(side.start())
        return
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print(json.dumps({"answer": asyncio.run(side.resume())}), flush=True)
    except Exception as error:  # noqa: BLE001 - a refusal is an outcome too
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:200]}), flush=True)


if __name__ == "__main__":
    main()

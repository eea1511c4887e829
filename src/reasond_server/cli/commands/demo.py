"""`reasond demo`: a server with the embedded model; a long book, a turn with tools, or a project with a fault.

The repair runs in a real sandbox.
"""

# ruff: noqa: PLC0415 - the first line is printed before the server and the client are imported

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import shlex
import shutil
import signal
import sys
import time
from importlib import resources
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from reasond_server.cli.examples import Endpoints, find_program, format_exports, list_calls, list_turn_calls
from reasond_server.cli.options import Verbose, command
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.terminal import write

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from importlib.resources.abc import Traversable

    from reasond import (
        AsyncClient,
        ClientFunction,
        ExecuteTurnResponse,
        PendingCall,
        Reasoning,
        Repair,
        TurnReentry,
        TurnResult,
    )
    from reasond_server.assembly.app import Listening
    from reasond_server.cli.show.live import LiveConsole

app = typer.Typer(rich_markup_mode=None)

QUESTION: Final = "What is the only remedy for the confusion caused by the tremors of the air?"
SHORT_QUESTION: Final = "Calculate the compound interest on $10,000 at 5% for 3 years"
_TITLE = "Newton's Opticks (1730), Book One, Part I"
_CONFIG: Final = MappingProxyType({"chunk_size": 2048, "carryover_size": 512})
# The demo runs the same everywhere: no file and no variable of the user changes it, and it needs no key.
_ENVIRON: Final = MappingProxyType(
    {
        "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
        "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
        "REASOND__LLM__PROVIDER": "demo",
        "REASOND__STORE__RECORD_PROMPTS": "true",
    }
)
_SERVED: Final = Endpoints(grpc="127.0.0.1:50051", http="http://127.0.0.1:8001")
_LIMIT_S = 60.0
REQUEST: Final = "What is 15% of 240? Read the book title. Tell the current time."
FILE: Final = "demo/data/opticks.txt"
PROJECT: Final = "demo/data/booking"
HELD_OUT: Final = "held_out.py"
_SUFFIX: Final = ".txt"
_VISIBLE: Final = ("python3", "-m", "tests.tap", "tests.test_rooms")
_REPAIR_LIMIT_S: Final = 120.0
_SYSTEM_FOLDERS: Final = "/usr/local/bin:/usr/bin:/bin"
# The embedded model knows only edits of the original, so nothing is gained by improving a candidate.
_REPAIR_CONFIG: Final = MappingProxyType(
    {"search": "best_of_n", "max_candidates": 200, "num_candidates": 5, "patience": 1000, "max_reflection_depth": 1}
)


@command(app, "demo")
def run(
    *,
    turn: Annotated[bool, typer.Option("--turn", help="Only the turn: tools, a hand-off and an approval.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Only a repair: a failing project, run in a sandbox.")
    ] = False,
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--no-keep",
            help="Keep the server, so that a browser can show the runs, until Ctrl-C; left out: on a terminal.",
        ),
    ] = None,
    is_verbose: Verbose = False,
) -> ExitCode:
    """Start a server with the embedded model; watch it find an answer in a long book and work on a turn with tools."""
    is_kept = sys.stdin.isatty() and sys.stdout.isatty() if keep is None else keep
    begun = time.monotonic()
    if repair:
        write("reasond demo: starting a server with the embedded model; no key and no network is needed")
        asyncio.run(_demonstrate_repair(begun, is_verbose=is_verbose, is_kept=is_kept))
    else:
        write("reasond demo: a server with the embedded model; no key and no network is needed")
        asyncio.run(_demonstrate(begun, is_only_turn=turn, is_verbose=is_verbose, is_kept=is_kept))
    return ExitCode.OK


@contextlib.asynccontextmanager
async def _serve_alone(environ: Mapping[str, str]) -> AsyncGenerator[Listening]:
    """Run a server with the settings of `environ` alone."""
    from reasond_server.assembly.app import Server
    from reasond_server.config import load
    from reasond_server.telemetry.logs import configure

    configure(sys.stderr, is_human=True, level=logging.WARNING)
    server = Server(load(Path(os.devnull), environ), environ=environ, dev=True)
    try:
        yield await server.start()
    finally:
        await server.stop()


async def _demonstrate(begun: float, *, is_only_turn: bool, is_verbose: bool, is_kept: bool) -> None:
    async with _serve_alone({**_ENVIRON, "REASOND__TURNS__NEEDS_APPROVAL": '["current_time"]'}) as listening:
        write(f"ready after {time.monotonic() - begun:.1f} s: gRPC {listening.grpc}, JSON-RPC {listening.http}")
        if is_kept:
            write(f"its page for a browser, until you press Ctrl-C: {listening.console_link}")
        if not is_only_turn:
            await _read_the_book(listening, is_verbose=is_verbose)
            await _ask_over_http(listening)
        await _run_turn(listening, number=1 if is_only_turn else 3, is_verbose=is_verbose)
        _show_calls(is_only_turn=is_only_turn)
        if is_kept:
            await keep_serving(listening)


async def keep_serving(listening: Listening) -> None:
    """Print the address at which a browser shows the runs, and wait for SIGINT or SIGTERM."""
    write(f"\nSee these runs in a browser, until Ctrl-C:\n  {listening.console_link}")
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    await is_over.wait()


async def _read_the_book(listening: Listening, *, is_verbose: bool) -> None:
    """Stream a bounded-context run over gRPC and show its steps, its answer and what it cost."""
    from reasond import AsyncClient, ReasondError
    from reasond_server.cli.show.live import LiveConsole
    from reasond_server.cli.show.run import RunDisplay

    book = resources.files("reasond_server").joinpath(FILE).read_text("utf-8")
    write(f"\n1. {_TITLE}: {len(book):,} characters,")
    write("   far more than one window holds. Read window by window, streamed over gRPC:")
    write(f"   {QUESTION}\n")
    live = LiveConsole(sys.stdout, is_verbose=is_verbose)
    if live.is_folding:
        write("   Each window gets the notes of the one before it, not the text. New notes:\n")
    else:
        write("   A line per window: how full it is, tokens in and out, time; then the notes that the next")
        write("   window gets instead of the text: tokens before -> after shortening, and what is new.\n")
    display = RunDisplay(live, is_kept=False)
    async with AsyncClient(listening.grpc, token=listening.token, timeout_s=_LIMIT_S) as client:
        stream = client.reason_iterations(QUESTION, material=book, strategy="bounded_context", config=_CONFIG)
        try:
            with live.open():
                async for event in stream:
                    display.show(event)
        except ReasondError as error:
            raise CommandError(f"The run failed: {error.message}") from None
    result = stream.result
    if result is None or not result.answer:
        raise CommandError("The run ended without an answer")
    display.print_answer(result)
    write(_find_answer(result, book))
    display.print_figures(result)


def _find_answer(result: Reasoning, book: str) -> str:
    """Return where `book` contains the answer word for word, ignoring line breaks."""
    words, sentence = book.split(), result.answer.split()
    for start in range(len(words) - len(sentence) + 1):
        if words[start : start + len(sentence)] == sentence:
            return f"found word for word in the text, after {100 * start // len(words)} % of it"
    return "put together from several places of the text"


async def _ask_over_http(listening: Listening) -> None:
    """Ask a short question over JSON-RPC with nothing but HTTP, and show the answer."""
    write(f"\n2. The same service over JSON-RPC, with plain HTTP:\n   {SHORT_QUESTION}\n")
    try:
        response = await asyncio.to_thread(_post, listening)
        result = response["result"]
        answer, strategy, spent = result["answer"], result["strategy_used"], result["metrics"]["total_tokens"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"JSON-RPC gave no answer ({type(error).__name__})") from None
    write(f"{answer}\n\n{strategy}, {spent:,} tokens")


def _post(listening: Listening) -> dict[str, Any]:
    """Return the JSON-RPC response to the short question."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": {"query": SHORT_QUESTION}}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {listening.token}"}
    connection = http.client.HTTPConnection(listening.http.partition("://")[2], timeout=_LIMIT_S)
    try:
        connection.request("POST", "/api/v1/jsonrpc", json.dumps(body), headers)
        response: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return response


async def _run_turn(listening: Listening, *, number: int, is_verbose: bool) -> None:
    """Run a turn with tools over gRPC."""
    from reasond import AsyncClient

    write(f"\n{number}. A turn of a conversation, in which the model calls tools:")
    async with AsyncClient(listening.grpc, token=listening.token, timeout_s=_LIMIT_S) as client:
        await show_turn(client, is_verbose=is_verbose)


def _show_calls(*, is_only_turn: bool) -> None:
    """Print the same calls for every client, to be used with a long-running server."""
    number = 2 if is_only_turn else 4
    write(f"\n{number}. Now you: `make serve`, or `reasond serve --dev`, keeps a server running and")
    write("   prints its page for a browser and an export line with its token. `reasond init`")
    write("   writes a config.toml for a model of your own. Paste the export line elsewhere, then:\n")
    write(f"  {format_exports(_SERVED, '<the token that serve prints>')}")
    if not is_only_turn:
        for name, command in list_calls(SHORT_QUESTION, _SERVED):
            write(f"  # {name}\n  {command}")
        write(f"  # the turn, for every client: {find_program('reasond')} demo --turn")
        return
    for name, command in list_turn_calls(REQUEST, book_title.__name__, book_title(), _SERVED):
        write(f"  # {name}\n  {command}")
    result = shlex.quote(json.dumps(book_title()))
    write("  # grpcurl and curl stop at the hand-off; whoever knows the result of c2 goes on:")
    write(f"  {find_program('reasond')} turns resolve TURN_ID --result c2={result}")


def book_title() -> str:  # named so: it is the name of the tool
    """Reads the title of the bundled book."""
    return resources.files("reasond_server").joinpath(FILE).read_text("utf-8").lstrip().splitlines()[0]


async def show_turn(client: AsyncClient, *, is_verbose: bool = False) -> None:
    """Run the turn of the demo, print each step as it completes, and settle what is handed off.

    Raises:
        CommandError: the turn ended without an answer.
    """
    from reasond import ReasondError, TurnStart, client_tool
    from reasond_server.cli.show.live import LiveConsole
    from reasond_server.cli.show.turn import TurnDisplay

    tool = client_tool(book_title)
    write(f"   {REQUEST}\n")
    write("   calculator and current_time are tools of the server. book_title is a function of")
    write("   this program, so the server hands it off. current_time needs an approval here,")
    write("   which the demo gives itself.\n")
    live = LiveConsole(sys.stdout, is_verbose=is_verbose)
    display = TurnDisplay(live, is_kept=False)
    result: TurnResult | None = None
    source: TurnStart | TurnReentry | None = TurnStart(message=REQUEST, client_tools=[tool.describe()])
    try:
        while source is not None:
            stream, source, handed_off = client.execute_turn(source), None, None
            with live.open():
                async for event in stream:
                    display.show(event)
                    if event.HasField("handed_off"):
                        handed_off = event
                    elif event.HasField("completed"):
                        result = event.completed
            if handed_off is not None:
                source = await _settle(client, live, handed_off, tool)
    except ReasondError as error:
        raise CommandError(f"The turn failed: {error.message}") from None
    if result is None or not result.answer:
        raise CommandError("The turn ended without an answer")
    live.print_answer(result.answer)
    display.show_end(result)


async def _settle(
    client: AsyncClient, live: LiveConsole, event: ExecuteTurnResponse, tool: ClientFunction[..., Any]
) -> TurnReentry:
    """Say what the demo does for the pending calls, and return what it found."""
    from reasond import Turn

    for pending in event.handed_off.calls:
        live.print(f"   -> {_describe_call(pending)}")
    turn = Turn(turn_id=event.turn_id, handoff=event.handed_off)
    return await client.settle_turn(turn, tools=[tool], approve=lambda _: True)


def _describe_call(pending: PendingCall) -> str:
    from reasond import CallKind

    if pending.kind == CallKind.CALL_KIND_APPROVE:
        return f"the demo approves {pending.call.tool}; a person would be asked here"
    return f"the demo runs its own function {pending.call.tool}, and sends the result"


def read_project() -> tuple[Mapping[str, str], str]:
    """Return the files of the bundled project by path, and the held-out tests, which are none of them.

    The tests of the project run with `unittest` and report by the Test Anything Protocol, which takes thirty lines of
    the project itself: so every Python of the machine can run them, and nothing has to be installed. The held-out tests
    are sent as the argument of a command. No file of the project holds them, so the model cannot see them.
    """
    files = dict(_read_folder(resources.files("reasond_server").joinpath(PROJECT), PurePosixPath()))
    held_out = files.pop(HELD_OUT)
    return files, held_out


def _read_folder(folder: Traversable, path: PurePosixPath) -> Mapping[str, str]:
    files: dict[str, str] = {}
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            files |= _read_folder(entry, path / entry.name)
        elif entry.name.endswith(_SUFFIX):
            files[str(path / entry.name.removesuffix(_SUFFIX))] = entry.read_text("utf-8")
    return files


async def _demonstrate_repair(begun: float, *, is_verbose: bool, is_kept: bool) -> None:
    async with _serve_alone(list_variables()) as listening:
        write(f"ready after {time.monotonic() - begun:.1f} s: gRPC {listening.grpc}\n")
        result = await _repair(listening, is_verbose=is_verbose)
        if is_kept:
            await keep_serving(listening)
    if not result.is_accepted:
        raise CommandError("The project was not repaired")
    write("\nNow you: `reasond serve --dev` with [repair] enabled and an environment for your tests, then")
    write('   reasond repair PATH --test "pytest -q" --held-out "pytest -q tests/others" --apply')


def list_variables() -> Mapping[str, str]:
    """Return the settings of the demo, the same everywhere; only the interpreter of the tests is found."""
    settings = {
        **_ENVIRON,
        "REASOND__REPAIR__ENABLED": "true",
        "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python",
        "REASOND__REPAIR__ENVIRONMENTS__PYTHON__FORMAT": "tap",
    }
    if shutil.which("python3", path=_SYSTEM_FOLDERS) is None:
        settings["REASOND__REPAIR__ENVIRONMENTS__PYTHON__ROOT"] = sys.base_prefix
    return settings


async def _repair(listening: Listening, *, is_verbose: bool) -> Repair:
    """Repair the project over gRPC, and show each step.

    Raises:
        CommandError: no sandbox works here, or the repair failed.
    """
    from reasond import AsyncClient, Check, CheckRole, ReasondError, SandboxLevel, repair_task
    from reasond_server.cli.show.live import LiveConsole
    from reasond_server.cli.show.repair import RepairDisplay, describe_level

    files, held_out = read_project()
    live = LiveConsole(sys.stdout, is_verbose=is_verbose)
    display = RepairDisplay(live, is_kept=False)
    async with AsyncClient(listening.grpc, token=listening.token, timeout_s=_REPAIR_LIMIT_S) as client:
        level = SandboxLevel.Name((await client.list_environments()).level).removeprefix("SANDBOX_LEVEL_")
        if level == "OFF":
            raise CommandError(
                "No sandbox works on this machine, so no code is run",
                remedy="Install bubblewrap (apt-get install bubblewrap), or the extra for Landlock "
                "(pip install 'reasond-server[sandbox]'); `reasond doctor` says what is missing.",
            )
        _introduce(files, level=describe_level(level))
        task = repair_task(
            files=files,
            environment="python",
            checks=[
                Check(name="test", role=CheckRole.CHECK_ROLE_REPRODUCE, argv=_VISIBLE),
                Check(name="held-out", role=CheckRole.CHECK_ROLE_HELD_OUT, argv=["python3", "-c", held_out]),
            ],
            config=_REPAIR_CONFIG,
        )
        stream = client.repair_steps(task)
        try:
            with live.open():
                async for event in stream:
                    display.show(event)
        except ReasondError as error:
            raise CommandError(f"The repair failed: {error.message}") from None
    if stream.result is None:
        raise CommandError("The repair ended without a result")
    display.show_patch(stream.result)
    display.show_end(stream.result)
    return stream.result


def _introduce(files: Mapping[str, str], *, level: str) -> None:
    write(f"A project with a fault: {', '.join(files)}. Its code is {level}, without a network.")
    write("The embedded model does not understand code: it tries one-line edits in a fixed order, and the tests of the")
    write("project decide. One that passes them is tried on held-out tests, which the search never sees.\n")

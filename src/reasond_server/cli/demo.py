"""`reasond demo`: a server with the embedded model, a long book and a turn with tools, and the steps to the answers."""

# ruff: noqa: PLC0415 - the first line is printed before the server and the client are imported

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import shlex
import signal
import sys
import time
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reasond_server.cli.examples import Endpoints, calls, exports, program, turn_calls
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.terminal import write

if TYPE_CHECKING:
    from reasond import Reasoning
    from reasond_server.assembly.app import Listening

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
        "REASOND__TURNS__NEEDS_APPROVAL": '["current_time"]',
    }
)
_SERVED: Final = Endpoints(grpc="127.0.0.1:50051", http="http://127.0.0.1:8001")
_LIMIT_S = 60.0


def run(*, is_only_turn: bool = False, is_verbose: bool = False, is_kept: bool = False) -> ExitCode:
    """Run the whole demo, or only its turn; with `is_kept` the server stays until Ctrl-C.

    `is_verbose` shows each line on a terminal, too.

    Raises:
        CommandError: the server gave no answer.
    """
    _say("reasond demo: a server with the embedded model; no key and no network is needed")
    begun = time.monotonic()
    asyncio.run(_demonstrate(begun, is_only_turn=is_only_turn, is_verbose=is_verbose, is_kept=is_kept))
    return ExitCode.OK


async def _demonstrate(begun: float, *, is_only_turn: bool, is_verbose: bool, is_kept: bool) -> None:
    from reasond_server.assembly.app import Server
    from reasond_server.config import load
    from reasond_server.telemetry.logs import configure

    configure(sys.stderr, is_human=True, level=logging.WARNING)
    server = Server(load(Path(os.devnull), _ENVIRON), environ=_ENVIRON, dev=True)
    listening = await server.start()
    try:
        _say(f"ready after {time.monotonic() - begun:.1f} s: gRPC {listening.grpc}, JSON-RPC {listening.http}")
        if not is_kept:
            _say(f"its page for a browser, until the demo ends (`demo --keep` keeps it): {listening.console_link}")
        if not is_only_turn:
            await _read_the_book(listening, is_verbose=is_verbose)
            await _ask_over_http(listening)
        await _run_turn(listening, number=1 if is_only_turn else 3, is_verbose=is_verbose)
        if is_kept:
            await keep_serving(listening)
    finally:
        await server.stop()
    _show_calls(is_only_turn=is_only_turn)


async def keep_serving(listening: Listening) -> None:
    """Print the address at which a browser shows the runs, and wait for SIGINT or SIGTERM."""
    _say(f"\nSee these runs in a browser, until Ctrl-C:\n  {listening.console_link}")
    is_over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    await is_over.wait()


async def _read_the_book(listening: Listening, *, is_verbose: bool) -> None:
    """Stream a bounded-context run over gRPC and show its steps, its answer and what it cost."""
    from reasond import AsyncClient, ReasondError
    from reasond_server.cli.demo_turn import FILE
    from reasond_server.cli.display import RunDisplay
    from reasond_server.cli.live import LiveConsole

    book = resources.files("reasond_server").joinpath(FILE).read_text("utf-8")
    _say(f"\n1. {_TITLE}: {len(book):,} characters,")
    _say("   far more than one window holds. Read window by window, streamed over gRPC:")
    _say(f"   {QUESTION}\n")
    live = LiveConsole(sys.stdout, is_verbose=is_verbose)
    if live.is_folding:
        _say("   Each window gets the notes of the one before it, not the text. New notes:\n")
    else:
        _say("   A line per window: how full it is, tokens in and out, time; then the notes that the next")
        _say("   window gets instead of the text: tokens before -> after shortening, and what is new.\n")
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
    display.answer(result)
    _say(_where(result, book))
    display.figures(result)


def _where(result: Reasoning, book: str) -> str:
    """Return where `book` contains the answer word for word, ignoring line breaks."""
    words, sentence = book.split(), result.answer.split()
    for start in range(len(words) - len(sentence) + 1):
        if words[start : start + len(sentence)] == sentence:
            return f"found word for word in the text, after {100 * start // len(words)} % of it"
    return "put together from several places of the text"


async def _ask_over_http(listening: Listening) -> None:
    """Ask a short question over JSON-RPC with nothing but HTTP, and show the answer."""
    _say(f"\n2. The same service over JSON-RPC, with plain HTTP:\n   {SHORT_QUESTION}\n")
    try:
        response = await asyncio.to_thread(_post, listening)
        result = response["result"]
        answer, strategy, spent = result["answer"], result["strategy_used"], result["metrics"]["total_tokens"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"JSON-RPC gave no answer ({type(error).__name__})") from None
    _say(f"{answer}\n\n{strategy}, {spent:,} tokens")


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
    from reasond_server.cli.demo_turn import show_turn

    _say(f"\n{number}. A turn of a conversation, in which the model calls tools:")
    async with AsyncClient(listening.grpc, token=listening.token, timeout_s=_LIMIT_S) as client:
        await show_turn(client, is_verbose=is_verbose)


def _show_calls(*, is_only_turn: bool) -> None:
    """Print the same calls for every client, to be used with a long-running server."""
    from reasond_server.cli.demo_turn import REQUEST, book_title

    number = 2 if is_only_turn else 4
    _say(f"\n{number}. Now you: `make serve`, or `reasond serve --dev`, keeps a server running and")
    _say("   prints its page for a browser and an export line with its token (the page of")
    _say("   the runs above: `reasond demo --keep`). docs/guides/getting-started.md has the")
    _say("   lines for a model of your own. Paste the export line elsewhere, then:\n")
    _say(f"  {exports(_SERVED, '<the token that serve prints>')}")
    if not is_only_turn:
        for name, command in calls(SHORT_QUESTION, _SERVED):
            _say(f"  # {name}\n  {command}")
        _say(f"  # the turn, for every client: {program('reasond')} demo --turn")
        return
    for name, command in turn_calls(REQUEST, book_title.name, book_title(), _SERVED):
        _say(f"  # {name}\n  {command}")
    result = shlex.quote(json.dumps(book_title()))
    _say("  # grpcurl and curl stop at the hand-off; whoever knows the result of c2 goes on:")
    _say(f"  {program('reasond')} turns resolve TURN_ID --result c2={result}")


def _say(text: str) -> None:
    # To stdout even if that is a pipe: this text is the output of the demo; the steps of `ask` are not its output.
    write(text)

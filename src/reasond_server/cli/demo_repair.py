"""`reasond demo --repair`: a bundled project with a fault, repaired by the embedded model in a real sandbox.

The tests of the project run with `unittest` and report by the Test Anything Protocol, which takes thirty lines of the
project itself: so every Python of the machine can run them, and nothing has to be installed. The held-out tests are
sent as the argument of a command. No file of the project holds them, so the model cannot see them.
"""

# ruff: noqa: PLC0415 - the first line is printed before the server and the client are imported

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import time
from importlib import resources
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.terminal import write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

    from reasond import Repair
    from reasond_server.assembly.app import Listening

FOLDER: Final = "demo/data/booking"
HELD_OUT: Final = "held_out.py"
_SUFFIX: Final = ".txt"
_VISIBLE: Final = ("python3", "-m", "tests.tap", "tests.test_rooms")
_LIMIT_S: Final = 120.0
_SYSTEM_FOLDERS: Final = "/usr/local/bin:/usr/bin:/bin"
# The embedded model knows only edits of the original, so nothing is gained by improving a candidate.
_CONFIG: Final = MappingProxyType(
    {"search": "best_of_n", "max_candidates": 200, "num_candidates": 5, "patience": 1000, "max_reflection_depth": 1}
)


def run(*, is_verbose: bool = False, is_kept: bool = False) -> ExitCode:
    """Run the demo; with `is_kept` the server stays until Ctrl-C, `is_verbose` shows each line on a terminal, too.

    Raises:
        CommandError: no sandbox works here, or the project was not repaired.
    """
    write("reasond demo: starting a server with the embedded model; no key and no network is needed")
    asyncio.run(_demonstrate(time.monotonic(), is_verbose=is_verbose, is_kept=is_kept))
    return ExitCode.OK


def read_project() -> tuple[Mapping[str, str], str]:
    """Return the files of the bundled project by path, and the held-out tests, which are none of them."""
    files = dict(_read_folder(resources.files("reasond_server").joinpath(FOLDER), PurePosixPath()))
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


async def _demonstrate(begun: float, *, is_verbose: bool, is_kept: bool) -> None:
    from reasond_server.assembly.app import Server
    from reasond_server.cli.demo import keep_serving
    from reasond_server.config import load
    from reasond_server.telemetry.logs import configure

    configure(sys.stderr, is_human=True, level=logging.WARNING)
    environ = list_variables()
    server = Server(load(Path(os.devnull), environ), environ=environ, dev=True)
    listening = await server.start()
    try:
        write(f"ready after {time.monotonic() - begun:.1f} s: gRPC {listening.grpc}\n")
        result = await _repair(listening, is_verbose=is_verbose)
        if is_kept:
            await keep_serving(listening)
    finally:
        await server.stop()
    if not result.is_accepted:
        raise CommandError("The project was not repaired")
    write("\nNow you: `reasond serve --dev` with [repair] enabled and an environment for your tests, then")
    write('   reasond repair PATH --test "pytest -q" --held-out "pytest -q tests/others" --apply')


def list_variables() -> Mapping[str, str]:
    """Return the settings of the demo, the same everywhere; only the interpreter of the tests is found."""
    settings = {
        "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
        "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
        "REASOND__LLM__PROVIDER": "demo",
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
    from reasond_server.cli.live import LiveConsole
    from reasond_server.cli.repair_display import RepairDisplay
    from reasond_server.cli.repair_text import describe_level

    files, held_out = read_project()
    live = LiveConsole(sys.stdout, is_verbose=is_verbose)
    display = RepairDisplay(live, is_kept=False)
    async with AsyncClient(listening.grpc, token=listening.token, timeout_s=_LIMIT_S) as client:
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
            config=_CONFIG,
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

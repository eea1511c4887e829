"""`reasond doctor`: prints a line for each thing that reasond needs, with a remedy if it is missing."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
import socket
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

import typer

from reasond_server.assembly.backends import build_tools, read_mcp_options
from reasond_server.assembly.stores import examine_stores
from reasond_server.assembly.workshops import examine_engine, open_sandboxes
from reasond_server.base.addresses import split_address
from reasond_server.cli.options import Config, Environ, command, describe_source
from reasond_server.cli.outcome import ExitCode
from reasond_server.cli.startup_checks import require_startable
from reasond_server.cli.terminal import sanitize, write
from reasond_server.config import Settings, choose_provider, load
from reasond_server.errors.base import ReasondError, SettingsError
from reasond_server.reasoning.registry import STRATEGIES
from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxFailedError
from reasond_server.tools.mcp import describe_server, examine_server
from reasond_server.types.repairs import SandboxLevel
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reasond_server.sandbox.levels import OpenedSandbox

app = typer.Typer(rich_markup_mode=None)

_LOWEST_PYTHON = (3, 11)
_PACKAGES = (
    *("reasond", "reasond-server", "grpcio", "grpcio-health-checking", "grpcio-reflection"),
    *("googleapis-common-protos", "protobuf", "pydantic", "PyJWT", "uvicorn", "httptools"),
    *("typer", "rich", "openai", "tiktoken", "aiohttp", "httpx2", "simpleeval", "sqlalchemy", "alembic"),
)
_EXTRAS = {
    "a2a": "a2a",
    "postgres": "psycopg_pool",
    "uvloop": "uvloop",
    "channelz": "grpc_channelz",
    "tokenizers": "tokenizers",
    "mcp": "mcp",
    "temporal": "temporalio",
}
_ADDRESSES = ("grpc_address", "http_address", "admin_address")


@value
class Diagnosis:
    """The result of one check: its state, and a remedy unless the check passed."""

    level: Literal["ok", "warn", "fail"]
    subject: str
    text: str
    remedy: str = ""


@command(app, "doctor")
def examine(config: Config = None, *, environ: Environ) -> ExitCode:
    """Examine this machine and the configuration; exit 1 if something would keep reasond from working."""
    worst = ExitCode.OK
    for finding in _list_findings(config, environ):
        write(format_diagnosis(finding))
        if finding.level == "fail":
            worst = ExitCode.FAILURE
    return worst


def format_diagnosis(finding: Diagnosis) -> str:
    """Return `finding` as one line."""
    text = " ".join(sanitize(f"{finding.text}. {finding.remedy}" if finding.remedy else finding.text).split())
    return f"{finding.level:<4}  {finding.subject:<12}  {text}"


def _list_findings(config: Path | None, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    yield _examine_python()
    yield from _examine_packages()
    yield examine_stubs()
    yield _examine_sqlite()
    yield from _examine_strategies()
    yield from _list_extras()
    try:
        loaded = load(config, environ)
    except SettingsError as error:
        yield Diagnosis(level="fail", subject="config", text=error.message, remedy=error.remedy)
        return
    yield Diagnosis(level="ok", subject="config", text=describe_source(loaded))
    yield _examine_provider(loaded.settings, environ)
    yield _examine_store(loaded.settings)
    yield from _examine_tools(loaded.settings)
    yield from asyncio.run(_examine_sandbox(loaded.settings))
    yield _examine_engine(loaded.settings, environ)
    yield _examine_start(config, environ)
    yield from _examine_ports(loaded.settings)


def _examine_python() -> Diagnosis:
    is_new_enough = sys.version_info >= _LOWEST_PYTHON
    return Diagnosis(
        level="ok" if is_new_enough else "fail",
        subject="python",
        text=f"{platform.python_implementation()} {platform.python_version()} on {platform.system()}",
        remedy="" if is_new_enough else "reasond needs Python 3.11 or newer.",
    )


def _examine_packages() -> Iterator[Diagnosis]:
    for name in _PACKAGES:
        try:
            yield Diagnosis(level="ok", subject="package", text=f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Diagnosis(
                level="fail", subject="package", text=f"{name} is not installed", remedy="Install reasond-server again."
            )


def examine_stubs() -> Diagnosis:
    """Return whether the generated stubs work with the grpcio and protobuf that are installed."""
    try:
        importlib.import_module("reasond")
    except Exception as error:  # noqa: BLE001 - protobuf and grpcio reject stubs with errors of many kinds
        return Diagnosis(
            level="fail",
            subject="stubs",
            text=f"reasond.v1 cannot be imported ({type(error).__name__})",
            remedy="Install a grpcio and protobuf that the distribution reasond allows.",
        )
    return Diagnosis(level="ok", subject="stubs", text="reasond.v1 imports with them")


def _examine_sqlite() -> Diagnosis:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5(content)")
    except sqlite3.OperationalError:
        return Diagnosis(
            level="fail",
            subject="sqlite",
            text=f"SQLite {sqlite3.sqlite_version} lacks FTS5",
            remedy="The demo model ranks with it; use a Python whose sqlite3 has FTS5.",
        )
    finally:
        connection.close()
    return Diagnosis(level="ok", subject="sqlite", text=f"SQLite {sqlite3.sqlite_version} with FTS5")


def _examine_strategies() -> Iterator[Diagnosis]:
    installed = STRATEGIES.find_installed()
    if not installed:
        yield Diagnosis(
            level="warn", subject="strategy", text="none is installed", remedy="Install reasond-server again."
        )
    for name in sorted(installed.names):
        try:
            STRATEGIES.load([name])
        except SettingsError as error:
            yield Diagnosis(level="fail", subject="strategy", text=error.message, remedy=error.remedy)
        else:
            yield Diagnosis(level="ok", subject="strategy", text=f"{name} ({installed[name].value})")


def _list_extras() -> Iterator[Diagnosis]:
    for extra, module in _EXTRAS.items():
        is_there = importlib.util.find_spec(module) is not None
        text = "installed" if is_there else f"not installed (optional: reasond-server[{extra}])"
        yield Diagnosis(level="ok", subject="extra", text=f"{extra} {text}")


def _examine_provider(settings: Settings, environ: Mapping[str, str]) -> Diagnosis:
    provider = choose_provider(settings, environ)
    if provider != "demo":
        return Diagnosis(level="ok", subject="model", text=f"{provider}, model {settings.llm.model or 'not named'}")
    return Diagnosis(
        level="warn",
        subject="model",
        text="the embedded demo model, which follows fixed rules",
        remedy="For a language model set [llm] provider, as docs/guides/model-backends.md says.",
    )


def _examine_tools(settings: Settings) -> Iterator[Diagnosis]:
    """Report which tools models may call; connects once to each MCP server."""
    try:
        names = build_tools(settings.tools).names
    except SettingsError as error:
        yield Diagnosis(level="fail", subject="tools", text=error.message, remedy=error.remedy)
        return
    yield Diagnosis(level="ok", subject="tools", text=", ".join(names) or "none is enabled")
    for options in read_mcp_options(settings.tools):
        found = asyncio.run(examine_server(options))
        place = f"{options.name} at {describe_server(options)}"
        if found is None:
            remedy = f"Start it, or correct [tools.mcp.{options.name}]; runs go on without its tools."
            yield Diagnosis(level="warn", subject="mcp", text=f"{place} does not answer", remedy=remedy)
        else:
            yield Diagnosis(level="ok", subject="mcp", text=f"{place}: {', '.join(found) or 'no tools'}")


async def _examine_sandbox(settings: Settings) -> Sequence[Diagnosis]:
    """Return the level of the sandbox, proved by its self-test, and whether jobs run in each environment."""
    if not (settings.repair.enabled or settings.reasoning.program_environment):
        text = "not needed, because [repair] enabled is false and [reasoning] program_environment is empty"
        return [Diagnosis(level="ok", subject="sandbox", text=text)]
    try:
        opened, environments = await open_sandboxes(settings.repair)
    except SandboxFailedError as error:
        remedy = "Name another one in [repair.sandbox] folder."
        return [Diagnosis(level="fail", subject="sandbox", text=f"{error}", remedy=remedy)]
    try:
        level = opened.sandbox.level
        if level is SandboxLevel.OFF:
            remedy = "Repairs and strategies that run code are refused; see docs/operations/sandbox.md."
            return [Diagnosis(level="warn", subject="sandbox", text=f"off: {opened.reason}", remedy=remedy)]
        passed = f"{level.value}, whose self-test passed"
        note = f"; not {opened.reason}" if opened.reason else ""
        found = [Diagnosis(level="ok", subject="sandbox", text=passed + note)]
        return [*found, *[await _examine_environment(one, opened) for one in environments.values()]]
    finally:
        await opened.close()


async def _examine_environment(environment: ExecutionEnvironment, opened: OpenedSandbox) -> Diagnosis:
    """Return whether a command can be run in `environment`; which one does not matter."""
    place = f"{environment.name} at {environment.root or '/usr'}"
    tree = await opened.workspaces.write_tree([])
    try:
        async with tree.open_workspace({}) as folder:
            job = Job(argv=("true",), folder=folder, environment=environment, limits=environment.limits)
            await opened.sandbox.run(job)
    except SandboxFailedError as error:
        remedy = f"Correct [repair.environments.{environment.name}]."
        return Diagnosis(level="warn", subject="environment", text=f"{place} cannot be used: {error}", remedy=remedy)
    finally:
        await tree.remove()
    return Diagnosis(level="ok", subject="environment", text=place)


def _examine_engine(settings: Settings, environ: Mapping[str, str]) -> Diagnosis:
    """Return where repairs are worked out, and whether a cluster answers."""
    try:
        text = asyncio.run(examine_engine(settings, environ))
    except SettingsError as error:
        return Diagnosis(level="fail", subject="engine", text=error.message, remedy=error.remedy)
    except ReasondError as error:
        remedy = "Start it, or correct [engine] address; repairs are refused until then."
        return Diagnosis(level="warn", subject="engine", text=error.message, remedy=remedy)
    return Diagnosis(level="ok", subject="engine", text=text)


def _examine_store(settings: Settings) -> Diagnosis:
    """Return the location of the store, and whether a server could use it; a running server may have it open."""
    try:
        text = examine_stores(url=settings.store.url, data_dir=settings.store.data_dir)
    except SettingsError as error:
        return Diagnosis(level="fail", subject="store", text=error.message, remedy=error.remedy)
    return Diagnosis(level="ok", subject="store", text=text)


def _examine_start(config: Path | None, environ: Mapping[str, str]) -> Diagnosis:
    """Return whether `serve` would start, with or without --dev."""
    refusals = {}
    for words, is_dev in (("serve", False), ("serve --dev", True)):
        try:
            require_startable(config, environ, is_dev=is_dev)
        except SettingsError as error:
            found = [f"{one.field} {one.description}" for one in error.violations]
            refusals[words] = "; ".join(found) or error.full_message
    if not refusals:
        return Diagnosis(level="ok", subject="serve", text="`reasond serve` would start, with --dev as well")
    return Diagnosis(
        level="fail" if len(refusals) > 1 else "warn",
        subject="serve",
        text=" and ".join(f"`reasond {words}`" for words in refusals) + " would refuse to start",
        remedy=next(iter(refusals.values())),
    )


def _examine_ports(settings: Settings) -> Iterator[Diagnosis]:
    for name in _ADDRESSES:
        address = getattr(settings.server, name)
        if address:
            yield examine_port(name, address)


def examine_port(name: str, address: str) -> Diagnosis:
    """Return whether `address` (host:port) can be listened on now."""
    host, port = split_address(address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return Diagnosis(
            level="warn",
            subject="port",
            text=f"{name} {address} cannot be listened on ({error.strerror})",
            remedy=f"A server may run there already; stop it, or set server.{name}.",
        )
    return Diagnosis(level="ok", subject="port", text=f"{name} {address} is free")

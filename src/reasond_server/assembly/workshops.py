"""Opens what repairs and programs of models need: sandbox, workspaces, environments, linter, critics, and the engine.

The package `sandbox` itself gets plain values.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.assembly.core import build_snapshot_keeper, find_preferred_model, make_system_clock
from reasond_server.assembly.limit_backend import audited_account
from reasond_server.config.repairs import RepairEnvironmentSettings, RepairSettings
from reasond_server.errors.base import SettingsError
from reasond_server.eventlog.stored.payload_store import PayloadStore
from reasond_server.reasoning.run_tools import SandboxPrograms
from reasond_server.repair.critics.critic_port import CRITICS
from reasond_server.repair.critics.linting import find_ruff
from reasond_server.repair.edits.patches import find_git
from reasond_server.repair.service.workbench import Workbench, Workshop
from reasond_server.sandbox.levels import OpenedSandbox, SandboxOptions, open_sandbox
from reasond_server.sandbox.sandbox import ExecutionEnvironment, SandboxFailedError, SandboxLimits
from reasond_server.tools.programs import NO_PROGRAMS, ProgramRunner
from reasond_server.types.repairs import ResultFormat, SandboxLevel
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from reasond_server.assembly.stores import Stores
    from reasond_server.config import Settings
    from reasond_server.engines.repair_worker import RepairWorker
    from reasond_server.engines.temporal import TemporalEngine, TemporalOptions
    from reasond_server.limits.callers import CallerLimits
    from reasond_server.llm.model import ChatModel
    from reasond_server.telemetry.observers import Observer

_MEBI = 1024 * 1024
_LEVELS = {
    "auto": (SandboxLevel.BWRAP, SandboxLevel.LANDLOCK),
    "bwrap": (SandboxLevel.BWRAP,),
    "landlock": (SandboxLevel.LANDLOCK,),
    "off": (),
}
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


@value
class Preset:
    """What fits a toolchain. `folders` are those of PATH below the environment's root, `variables` may name paths."""

    format: ResultFormat
    folders: Sequence[str] = ("bin",)
    also_folders: Sequence[str] = ()
    memory_mb: int = 1024
    has_address_limit: bool = False
    cache_variable: str = ""
    variables: Mapping[str, str]


PRESETS: Mapping[str, Preset] = {
    "plain": Preset(format=ResultFormat.EXIT_CODE, variables={}),
    "python": Preset(
        format=ResultFormat.JUNIT,
        has_address_limit=True,
        # Hashes in one order make the output of equal candidates equal.
        variables={
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONFAULTHANDLER": "1",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
        },
    ),
    "node": Preset(
        format=ResultFormat.TAP,
        folders=("bin", "node_modules/.bin"),
        variables={
            "NODE_PATH": "{root}/node_modules",
            "npm_config_cache": "{tmp}/npm",
            "npm_config_offline": "true",
            "NO_COLOR": "1",
        },
    ),
    "go": Preset(
        format=ResultFormat.GO_JSON,
        also_folders=("/usr/local/go/bin",),
        cache_variable="GOCACHE",
        variables={
            "GOCACHE": "{tmp}/go-build",
            "GOPATH": "{tmp}/go",
            "GOMODCACHE": "{root}/pkg/mod",
            "GOPROXY": "off",
            "GOTOOLCHAIN": "local",
            "GOTELEMETRY": "off",
            "CGO_ENABLED": "0",
        },
    ),
    "java": Preset(
        format=ResultFormat.JUNIT,
        memory_mb=2048,
        cache_variable="GRADLE_USER_HOME",
        # The machine seen from inside is larger than what a check may use.
        variables={
            "JAVA_TOOL_OPTIONS": "-Xmx{heap_mb}m -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={tmp}",
            "GRADLE_USER_HOME": "{tmp}/gradle",
        },
    ),
}
_HEAP_SHARE = 0.6


def read_environments(settings: RepairSettings) -> Mapping[str, ExecutionEnvironment]:
    """Return the environments of [repair.environments] by name."""
    return {name: _read_environment(name, entry) for name, entry in settings.environments.items()}


def _read_environment(name: str, entry: RepairEnvironmentSettings) -> ExecutionEnvironment:
    preset = PRESETS[entry.preset]
    root = Path(entry.root) if entry.root else None
    memory_mb = entry.memory_mb or preset.memory_mb
    variables = {
        key: text.replace("{heap_mb}", str(int(memory_mb * _HEAP_SHARE))) for key, text in preset.variables.items()
    }
    folders = () if root is None or entry.is_image else tuple(str(root / folder) for folder in preset.folders)
    return ExecutionEnvironment(
        name=name,
        root=root,
        is_image=entry.is_image,
        search_path=(*folders, *preset.also_folders, *_SYSTEM_PATH),
        also_readable=(
            *(_find_interpreter_folders(root) if root and not entry.is_image else ()),
            *([Path(entry.cache)] if entry.cache else ()),
        ),
        cache=Path(entry.cache) if entry.cache else None,
        cache_variable=entry.cache_variable or preset.cache_variable,
        variables={**variables, **entry.variables},
        format=ResultFormat(entry.format) if entry.format else preset.format,
        description=entry.description,
        limits=SandboxLimits(
            wall_s=entry.wall_s,
            cpu_s=entry.cpu_s,
            memory_bytes=memory_mb * _MEBI,
            processes=entry.processes,
            disk_bytes=entry.disk_mb * _MEBI,
        ),
        has_address_limit=preset.has_address_limit,
        has_writable_sources=entry.writable_sources,
    )


def _find_interpreter_folders(root: Path) -> Sequence[Path]:
    """Return the folder of the interpreter that a virtual environment refers to."""
    try:
        lines = (root / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    entries = dict(line.partition("=")[::2] for line in lines)
    home = next((text.strip() for key, text in entries.items() if key.strip() == "home"), "")
    # The home is the folder of the program; its library lies beside it.
    return (Path(home).parent,) if Path(home).is_absolute() and Path(home).parent != Path("/usr") else ()


def read_sandbox_options(settings: RepairSettings) -> SandboxOptions:
    """Return what [repair.sandbox] says."""
    sandbox = settings.sandbox
    return SandboxOptions(
        levels=_LEVELS[sandbox.level], folder=Path(sandbox.folder or tempfile.gettempdir()), bwrap=sandbox.bwrap
    )


async def open_sandboxes(settings: RepairSettings) -> tuple[OpenedSandbox, Mapping[str, ExecutionEnvironment]]:
    """Return the sandbox that [repair] describes, proved by its self-test, and the environments.

    Raises:
        SandboxFailedError: the folder for workspaces cannot be used.
    """
    return await open_sandbox(read_sandbox_options(settings)), read_environments(settings)


@asynccontextmanager
async def open_python_programs(*, at_once: int = 2) -> AsyncIterator[ProgramRunner]:
    """Yield what runs Python programs on this machine, `at_once` at a time; nothing where no sandbox works.

    The Python is one that jobs can reach, so programs have the standard library and what is installed beside it.
    """
    try:
        opened, environments = await open_sandboxes(
            RepairSettings(environments={"python": RepairEnvironmentSettings(preset="python")})
        )
    except SandboxFailedError:
        yield NO_PROGRAMS
        return
    try:
        if opened.sandbox.level is SandboxLevel.OFF:
            yield NO_PROGRAMS
            return
        yield SandboxPrograms(
            sandbox=opened.sandbox,
            workspaces=opened.workspaces,
            environment=environments["python"],
            permits=asyncio.Semaphore(at_once),
        )
    finally:
        await opened.close()


def build_engine(settings: Settings, stores: Stores, environ: Mapping[str, str]) -> TemporalEngine | None:
    """Return the engine of repairs; None if they are worked out in this process.

    Raises:
        SettingsError: its package is not installed, repairs are not offered, or the store does not outlive the process.
    """
    if settings.engine.repair != "temporal":
        return None
    options = _read_options(settings, environ)
    if stores.transactions is None:
        raise SettingsError(
            '[engine] repair is "temporal", but the store is in memory, where no worker finds what was done',
            remedy="Name a database in [store] url; with `reasond worker` it must be PostgreSQL.",
        )
    from reasond_server.engines.temporal import TemporalEngine  # noqa: PLC0415 - as below

    return TemporalEngine(options, PayloadStore(stores.transactions))


async def examine_engine(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return in words where repairs are worked out; asks a cluster whether it is there.

    Raises:
        SettingsError: its package is not installed, or repairs are not offered.
        EngineUnavailableError: it cannot be reached.
    """
    engine = settings.engine
    if engine.repair != "temporal":
        return "repairs are worked out in the server"
    options = _read_options(settings, environ)
    from reasond_server.engines.temporal import open_client, require_cluster  # noqa: PLC0415 - as below

    await require_cluster(await open_client(options), engine.address)
    return f"Temporal at {engine.address}, namespace {engine.namespace}"


def _read_options(settings: Settings, environ: Mapping[str, str]) -> TemporalOptions:
    engine = settings.engine
    if importlib.util.find_spec("temporalio") is None:
        raise SettingsError(
            '[engine] repair is "temporal", but temporalio cannot be imported',
            remedy="Install reasond-server[temporal].",
        )
    if not settings.repair.enabled:
        raise SettingsError(
            '[engine] repair is "temporal", but repairs are not offered',
            remedy="Set enabled = true in [repair], or leave the engine out.",
        )
    # Only here: the package takes 18 MB.
    from reasond_server.engines.temporal import TemporalOptions  # noqa: PLC0415 - as above

    return TemporalOptions(
        address=engine.address,
        namespace=engine.namespace,
        queue=engine.queue,
        max_active_s=settings.repair.max_active_s,
        tls=engine.tls,
        tls_ca_file=engine.tls_ca_file,
        tls_certificate_file=engine.tls_certificate_file,
        tls_key_file=engine.tls_key_file,
        api_key=environ.get(engine.api_key_env, "") if engine.api_key_env else "",
    )


def build_repair_worker(
    settings: Settings,
    stores: Stores,
    workshop: Workshop,
    *,
    model: ChatModel | None,
    backends: Mapping[str, ChatModel],
    limits: CallerLimits,
    observer: Observer,
) -> RepairWorker:
    """Return the activities of repairs; without a `model` only those that run checks.

    `model` is that of the server, `backends` are those that [repair] may name.
    """
    from reasond_server.engines.repair_worker import RepairWorker  # noqa: PLC0415 - as above

    preferred, clock = find_preferred_model(settings, backends), stores.time_of(make_system_clock())
    assert stores.transactions is not None  # noqa: S101 - `build_engine` has seen to it
    return RepairWorker(
        store=stores.executions,
        payloads=PayloadStore(stores.transactions),
        workbench=Workbench(
            clock=clock,
            policy=settings.repair,
            snapshots=build_snapshot_keeper(settings, clock, stores.snapshots),
            workshop=workshop,
            observer=observer,
        ),
        model=preferred or model,
        has_own_model=preferred is not None,
        account_of=partial(audited_account, limits),
        observer=observer,
    )


_log = logging.getLogger("reasond.repair")


@value
class OpenedWorkshop:
    """A workshop, and what is closed with it."""

    workshop: Workshop
    opened: OpenedSandbox

    async def aclose(self) -> None:
        """Remove all workspaces; no repair may run any more."""
        await self.opened.close()


async def open_workshop(settings: RepairSettings) -> OpenedWorkshop:
    """Open the sandbox that [repair] describes, proved by its self-test, and find linter and critics.

    Programs of models run in it too, whether repairs are offered or not; only repairs need git.

    Where no level works, no code is run, and the log says why.

    Raises:
        SettingsError: repairs are offered and git is missing, the folder for workspaces cannot be used, or a critic
            cannot be loaded.
    """
    if settings.enabled and find_git() is None:
        raise SettingsError(
            "Repairs need git, which is not installed",
            remedy="Install git: patches are made and tried with it. Or set enabled = false in [repair].",
        )
    critics = CRITICS.load(settings.critics)
    try:
        opened, environments = await open_sandboxes(settings)
    except SandboxFailedError as error:
        raise SettingsError(
            f"The folder for workspaces cannot be used: {error}", remedy="Name another one in [repair.sandbox] folder."
        ) from error
    level = opened.sandbox.level
    if level is SandboxLevel.OFF:
        _log.warning("no sandbox works, so no code is run: %s", opened.reason)
    else:
        _log.info("sandbox", extra={"level": level.value})
    workshop = Workshop(
        sandbox=opened.sandbox,
        workspaces=None if level is SandboxLevel.OFF else opened.workspaces,
        environments=environments,
        permits=asyncio.Semaphore(settings.checks_at_once),
        linter=find_ruff(),
        critics=critics,
    )
    return OpenedWorkshop(workshop=workshop, opened=opened)

"""Makes the sandbox, the workspaces and the environments of [repair]; `sandbox` itself gets plain values."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.config.repairs import RepairEnvironmentSettings, RepairSettings
from reasond_server.reasoning.run_programs import SandboxPrograms
from reasond_server.sandbox.levels import SandboxOptions, open_sandbox
from reasond_server.sandbox.sandbox import ExecutionEnvironment, SandboxFailedError, SandboxLimits
from reasond_server.tools.programs import NO_PROGRAMS
from reasond_server.types.repairs import ResultFormat, SandboxLevel
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from reasond_server.sandbox.levels import OpenedSandbox
    from reasond_server.tools.programs import ProgramRunner

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

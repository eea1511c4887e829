"""Settings of [repair.sandbox] and [repair.environments] become values of the sandbox."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from reasond_server.assembly.workshops import open_sandboxes, read_environments, read_sandbox_options
from reasond_server.config.repairs import RepairEnvironmentSettings, RepairSettings, SandboxSettings
from reasond_server.types.repairs import ResultFormat, SandboxLevel

MEBI = 1024 * 1024


def test_a_preset_brings_its_form_its_memory_and_its_variables(tmp_path: Path) -> None:
    presets = ("plain", "python", "node", "go", "java")
    settings = RepairSettings(
        environments={
            name: RepairEnvironmentSettings.model_validate({"preset": name, "root": str(tmp_path)}) for name in presets
        }
    )
    found = read_environments(settings)
    assert [found[name].format for name in presets] == [
        ResultFormat.EXIT_CODE,
        ResultFormat.JUNIT,
        ResultFormat.TAP,
        ResultFormat.GO_JSON,
        ResultFormat.JUNIT,
    ]
    assert [found[name].limits.memory_bytes // MEBI for name in presets] == [1024, 1024, 1024, 1024, 2048]
    # Runtimes that reserve much more than they use fail with a limit of the address space.
    assert [name for name in presets if found[name].has_address_limit] == ["python"]
    assert found["python"].search_path[0] == str(tmp_path / "bin")
    assert "-Xmx1228m" in found["java"].variables["JAVA_TOOL_OPTIONS"]
    assert all("{heap_mb}" not in text for one in found.values() for text in one.variables.values())


def test_what_the_operator_says_wins_over_the_preset() -> None:
    settings = RepairSettings(
        environments={
            "go": RepairEnvironmentSettings(
                preset="go",
                format="exit_code",
                memory_mb=300,
                wall_s=5,
                variables={"GOPROXY": "direct"},
                writable_sources=True,
            )
        }
    )
    one = read_environments(settings)["go"]
    assert (one.format, one.limits.memory_bytes, one.limits.wall_s) == (ResultFormat.EXIT_CODE, 300 * MEBI, 5)
    assert one.variables["GOPROXY"] == "direct"
    assert one.has_writable_sources
    assert one.root is None


def test_jobs_may_read_the_interpreter_of_a_virtual_environment(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /opt/python/bin\nversion = 3\n", encoding="utf-8")
    settings = RepairSettings(environments={"one": RepairEnvironmentSettings(preset="python", root=str(tmp_path))})
    assert read_environments(settings)["one"].also_readable == (Path("/opt/python"),)


def test_auto_tries_both_levels_and_never_becomes_off() -> None:
    expected = {
        "auto": (SandboxLevel.BWRAP, SandboxLevel.LANDLOCK),
        "bwrap": (SandboxLevel.BWRAP,),
        "landlock": (SandboxLevel.LANDLOCK,),
        "off": (),
    }
    for level, levels in expected.items():
        options = read_sandbox_options(RepairSettings(sandbox=SandboxSettings.model_validate({"level": level})))
        assert tuple(options.levels) == levels
        assert options.folder == Path(tempfile.gettempdir())


async def test_a_sandbox_that_is_off_says_so(tmp_path: Path) -> None:
    settings = RepairSettings(sandbox=SandboxSettings(level="off", folder=str(tmp_path)))
    opened, environments = await open_sandboxes(settings)
    assert (opened.sandbox.level, opened.reason, dict(environments)) == (SandboxLevel.OFF, "it is switched off", {})
    await opened.close()
    assert not [name for _, folders, names in os.walk(tmp_path) for name in (*folders, *names)][1:]

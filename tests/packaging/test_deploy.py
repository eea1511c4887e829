"""What `deploy/` holds, as far as parsers go: nothing of it is run here but the configuration and the unit's check."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes without types

from reasond_server.cli.starting import require_startable
from reasond_server.config import load
from tests.packaging.environments import CLIENT, ROOT, SERVER

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "reasond"
SECRETS = {
    "REASOND_SIGNING_KEY": secrets.token_urlsafe(48),
    "REASOND__STORE__URL": "postgresql://reasond:p@postgres/reasond",
}


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def read_version(project: Path) -> str:
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


@pytest.mark.parametrize("place", ["compose", "chart"])
def test_a_server_would_start_with_the_configuration(place: str, tmp_path: Path) -> None:
    chart = read_yaml(CHART / "values.yaml")["config"]
    text = (DEPLOY / "config.toml").read_text(encoding="utf-8") if place == "compose" else chart
    compose = read_yaml(DEPLOY / "compose.yaml")["services"]["reasond"]["environment"]
    more = {name: value for name, value in compose.items() if "LIMITS" in name or "METRICS" in name}
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    environ = {**SECRETS, **(more if place == "compose" else {})}
    require_startable(path, environ, is_dev=False)


def test_processes_have_the_time_to_drain() -> None:
    server = load(None, {}).settings.server
    least_s = server.drain_delay_s + server.drain_grace_s + 6
    unit = (DEPLOY / "reasond.service").read_text(encoding="utf-8")
    compose = read_yaml(DEPLOY / "compose.yaml")["services"]["reasond"]
    told = [
        re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0],
        compose["stop_grace_period"].removesuffix("s"),
        read_yaml(CHART / "values.yaml")["terminationGracePeriodSeconds"],
    ]
    assert [each for each in told if int(each) < least_s] == []


def test_everything_names_the_version_of_this_tree() -> None:
    version = read_version(SERVER)
    assert read_version(CLIENT) == version
    assert read_yaml(CHART / "Chart.yaml")["appVersion"] == version
    assert f"]=={version}" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f'server = ["reasond-server=={version}"]' in (CLIENT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_image_is_no_root_and_installs_extras_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    user, command = text.index("USER 10001"), text.index("ENTRYPOINT")
    assert user < command
    extras = tomllib.loads((SERVER / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted = re.findall(r"reasond-server\[([a-z,]+)\]", text)[0].split(",")
    assert set(wanted) <= set(extras)


def test_workflows_grant_only_what_a_job_needs() -> None:
    release = read_yaml(ROOT / ".github" / "workflows" / "release.yml")
    assert release["permissions"] == {}
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert all("permissions" in job for job in release["jobs"].values())


def test_the_unit_passes_the_check_of_systemd(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here")
    unit = tmp_path / "reasond.service"
    # The unit's program is not installed here.
    text = (DEPLOY / "reasond.service").read_text(encoding="utf-8").replace("/opt/reasond/bin/reasond", "/bin/true")
    unit.write_text(text, encoding="utf-8")
    environ = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_chart_names_only_values_that_it_has() -> None:
    values = read_yaml(CHART / "values.yaml")
    for template in sorted((CHART / "templates").iterdir()):
        for path in re.findall(r"\.Values\.([A-Za-z.]+)", template.read_text(encoding="utf-8")):
            found: Any = values
            for name in path.split("."):
                assert name in found, f"{template.name} names {path}"
                found = found[name]

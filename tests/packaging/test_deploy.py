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

from reasond_server.cli.startup_checks import require_startable
from reasond_server.config import load
from tests.packaging.environments import CLIENT, ROOT, SERVER

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "reasond"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
RUN_BY_TESTS = {"config.toml", "envoy", "haproxy", "nginx", "reasond.service"}
INSTRUCTIONS = {
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "RUN",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
}
SECRETS = {
    "REASOND_SIGNING_KEY": secrets.token_urlsafe(48),
    "REASOND__STORE__URL": "postgresql://reasond:p@postgres/reasond",
}


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def read_version(project: Path) -> str:
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def test_what_is_not_run_here_says_so_in_its_first_lines() -> None:
    # The chart is one thing; its description speaks for it.
    files = {
        "helm": [CHART / "Chart.yaml", DEPLOY / "helm" / "prometheus-adapter.yaml"],
        **{name: sorted((DEPLOY / name).iterdir()) for name in ("mesh", "kind")},
    }
    others = [path for path in DEPLOY.iterdir() if path.name not in RUN_BY_TESTS]
    checked = [file for path in others for file in files.get(path.name, [path])] + WORKFLOWS
    beginnings = {path.name: path.read_text(encoding="utf-8").splitlines()[:2] for path in checked}
    assert {"Dockerfile", "compose.yaml", "Chart.yaml", "release.yml"} <= set(beginnings)
    assert [
        name for name, lines in beginnings.items() if not re.search(r"^#.*Not run\b", "\n".join(lines), re.MULTILINE)
    ] == []


def test_the_image_is_made_of_known_instructions_and_files_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    steps = [line.split() for line in lines if line]
    assert {step[0] for step in steps} <= INSTRUCTIONS
    assert [step[0] for step in steps].count("FROM") == 2
    copied = [step for step in steps if step[0] == "COPY"]
    assert {step[1] for step in copied if step[1].startswith("--")} == {"--from=build"}
    sources = [source for step in copied if not step[1].startswith("--") for source in step[1:-1]]
    assert len(sources) > 5
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_what_compose_mounts_exists_and_prometheus_asks_a_service_for_its_metrics() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")
    mounts = [mount.split(":") for each in compose["services"].values() for mount in each.get("volumes", [])]
    places = {target for _, target, *_ in mounts}
    assert [name for name, *_ in mounts if not (name in compose["volumes"] or (DEPLOY / name).is_file())] == []
    for service in compose["services"].values():
        assert set(service.get("depends_on", {})) <= set(compose["services"])
    prometheus = read_yaml(DEPLOY / "prometheus.yml")
    assert {f"/etc/prometheus/{name}" for name in prometheus["rule_files"]} <= places
    (target,) = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert name in compose["services"]
    config = tomllib.loads((DEPLOY / "config.toml").read_text(encoding="utf-8"))
    assert config["metrics"]["address"].rpartition(":")[2] == port


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
    pages = read_yaml(ROOT / ".github" / "workflows" / "pages.yml")
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    check = read_yaml(ROOT / ".github" / "workflows" / "check.yml")
    assert check["jobs"]["check"]["permissions"] == {"contents": "read"}
    for workflow in (release, pages, check):
        assert workflow["permissions"] == {}
        assert all("permissions" in job for job in workflow["jobs"].values())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_each_action_by_the_hash_of_a_commit_and_say_its_version(workflow: Path) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text(encoding="utf-8"))
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}  # v[\d.]+", each)] == []


def test_pull_requests_are_checked_on_the_oldest_and_the_newest_python() -> None:
    workflow = read_yaml(ROOT / ".github" / "workflows" / "check.yml")
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow[True]) == {"pull_request", "push"}
    job = workflow["jobs"]["check"]
    project = tomllib.loads((SERVER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    newest = max(re.findall(r"python3\.(\d+)", makefile), key=int)
    assert job["strategy"]["matrix"]["python"] == [project["requires-python"].removeprefix(">="), f"3.{newest}"]
    assert job["steps"][-1] == {"run": "bash .ci/run"}


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

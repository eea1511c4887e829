"""The configurations of `deploy/` pass the check of the program that they are for."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml  # type: ignore[import-untyped]  # comes without types

from tests.mesh.proxies import DEPLOY, ENVOY_FILES, PLACES, ROOT, find_program
from tests.mesh.tls_files import SYSTEM_ROOTS, write_tls_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("file", ENVOY_FILES)
def test_envoy_accepts_the_configuration(file: str, tmp_path: Path) -> None:
    text = (DEPLOY / "envoy" / file).read_text(encoding="utf-8")
    # The files that a user puts there.
    (tmp_path / "reasond.binpb").write_bytes((ROOT / "proto" / "reasond.binpb").read_bytes())
    roots = write_tls_files(tmp_path / "tls")
    config = tmp_path / file
    text = text.replace("/etc/envoy", str(tmp_path)).replace(SYSTEM_ROOTS, str(roots))
    config.write_text(text, encoding="utf-8")
    command = [find_program("envoy"), "--mode", "validate", "-c", str(config), "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_files_of_envoy_have_the_same_servers() -> None:
    found = [yaml.safe_load((DEPLOY / "envoy" / file).read_text("utf-8")) for file in ENVOY_FILES]
    clusters = [each["static_resources"]["clusters"][:2] for each in found]
    assert clusters == [clusters[0]] * len(ENVOY_FILES)


def test_nginx_accepts_the_configuration(tmp_path: Path) -> None:
    command = [find_program("nginx"), "-t", "-q", "-p", str(tmp_path)]
    command += ["-g", f"pid {tmp_path}/pid;", "-c", str(PLACES["nginx"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_haproxy_accepts_the_configuration() -> None:
    done = subprocess.run(
        [find_program("haproxy"), "-c", "-q", "-f", PLACES["haproxy"]], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

"""Real proxies for tests: Envoy, nginx and HAProxy with the configurations of `deploy/`, on free ports.

A test may replace texts of a configuration, such as addresses and times; each text must be in it. A program that is
not installed skips the test, or fails it in CI.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
ENVOY_FILES = sorted(path.name for path in (DEPLOY / "envoy").glob("*.yaml"))
PLACES = {"nginx": DEPLOY / "nginx" / "reasond.conf", "haproxy": DEPLOY / "haproxy" / "haproxy.cfg"}
GRPC, HTTP = "127.0.0.1:50051", "127.0.0.1:8001"
"""The servers that the configurations name."""

LIMIT_S = 120.0
SCRATCH = "".join(f"\n    {kind}_temp_path {kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))


@dataclass(frozen=True, kw_only=True)
class Backends:
    """The addresses of the servers behind a proxy, for gRPC and for HTTP, in the same order."""

    grpc: Sequence[str]
    http: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """A running proxy: its addresses for gRPC, for HTTP and for Envoy's administrators, and the file of its log."""

    grpc: str
    http: str
    admin: str
    log: Path


def find_program(name: str) -> str:
    """Return the path of a proxy; without it skip the test, or fail it in CI."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found:
        return found
    message = f"{name} is not installed here (make test installs it on Debian for x86-64)"
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(message)
    pytest.skip(message)


def reserve_ports(count: int) -> list[int]:
    """Return ports that are free."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of an address."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def replace_all(text: str, replacements: Mapping[str, str]) -> str:
    """Return the text with the replacements; each must have its place."""
    for old, new in replacements.items():
        assert old in text, f"{old!r} is not in the configuration"
        text = text.replace(old, new)
    return text


def envoy_endpoint(address: str) -> str:
    """Return one endpoint of a cluster."""
    host, port = host_and_port(address)
    return f"- endpoint: {{address: {{socket_address: {{address: {host}, port_value: {port}}}}}}}"


def configure_envoy(text: str, behind: Backends, ports: Sequence[int]) -> str:
    """Return a configuration of Envoy with these servers and ports."""
    between = "\n" + 14 * " "
    listener = "10443" if "port_value: 10443" in text else "10000"
    return replace_all(
        text,
        {
            envoy_endpoint(GRPC): between.join(map(envoy_endpoint, behind.grpc)),
            envoy_endpoint(HTTP): between.join(map(envoy_endpoint, behind.http)),
            f"0.0.0.0, port_value: {listener}": f"127.0.0.1, port_value: {ports[0]}",
            "port_value: 9901": f"port_value: {ports[1]}",
        },
    )


def configure_nginx(text: str, behind: Backends, ports: Sequence[int]) -> str:
    """Return a configuration of nginx with these servers and ports, which writes nowhere but in its folder."""
    rest = " max_fails=1 fail_timeout=1s;"
    # Else the workers of root's nginx are another user, who may not write into the folder of the test.
    user = "user root; " if os.geteuid() == 0 else ""
    return replace_all(
        text,
        {
            f"server {GRPC}{rest}": "\n".join(f"server {each}{rest}" for each in behind.grpc),
            f"server {HTTP}{rest}": "\n".join(f"server {each}{rest}" for each in behind.http),
            "listen 10000": f"listen 127.0.0.1:{ports[0]}",
            "listen 10001": f"listen 127.0.0.1:{ports[1]}",
            "access_log off;": f"access_log off;{SCRATCH}",
            "worker_processes auto;": f"{user}worker_processes 1; daemon off; pid nginx.pid;",
        },
    )


def configure_haproxy(text: str, behind: Backends, ports: Sequence[int]) -> str:
    """Return a configuration of HAProxy with these servers and ports."""
    checks = [host_and_port(each)[1] for each in behind.http]
    pairs = zip(behind.grpc, checks, strict=True)
    lines = [f"server s{port} {each} proto h2 check port {port} check-proto h1" for each, port in pairs]
    return replace_all(
        text,
        {
            f"server reasond1 {GRPC} proto h2 check port 8001 check-proto h1": "\n    ".join(lines),
            f"server reasond1 {HTTP} check": "\n    ".join(f"server s{each[-5:]} {each} check" for each in behind.http),
            "bind :10000": f"bind 127.0.0.1:{ports[0]}",
        },
    )


@asynccontextmanager
async def running_proxy(
    name: str,
    folder: Path,
    behind: Backends,
    *,
    file: str = "plain.yaml",
    replacements: Mapping[str, str] | None = None,
) -> AsyncGenerator[Proxy, None]:
    """Run a proxy in front of the servers inside the context; `file` is the configuration if it is Envoy's."""
    program = find_program(name)
    ports = reserve_ports(2)
    source = PLACES.get(name, DEPLOY / "envoy" / file)
    configure = {"envoy": configure_envoy, "nginx": configure_nginx, "haproxy": configure_haproxy}[name]
    text = configure(source.read_text(encoding="utf-8"), behind, ports)
    config = folder / f"{name}-{ports[0]}{source.suffix}"
    config.write_text(replace_all(text, replacements or {}), encoding="utf-8")
    own = {
        "envoy": ["-c", str(config), "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"],
        "nginx": ["-p", str(folder), "-c", str(config)],
        "haproxy": ["-db", "-f", str(config)],
    }[name]
    log = config.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [program, *own], cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    http_port = ports[1] if name == "nginx" else ports[0]
    try:
        for port in {ports[0], http_port}:
            await _until_listening(process, port, log)
        grpc, http, admin = (f"127.0.0.1:{port}" for port in (ports[0], http_port, ports[1]))
        yield Proxy(grpc=grpc, http=http, admin=admin, log=log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, LIMIT_S)
        finally:
            process.kill()


def read_end(log: Path) -> str:
    """Return the end of a log."""
    return log.read_text("utf-8", "replace")[-3000:]


async def _until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the proxy accepts connections."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            assert process.poll() is None, read_end(log)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return

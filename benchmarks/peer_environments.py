"""Environments for programs that are compared with reasond: made once, under .cache/peers, at pinned versions.

Only the benchmarks use them. The server has one too, with wheels built from the current tree, because users do not
install the editable tree with all its tools.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "peers"
CONSTRAINTS = ROOT / "constraints.txt"
PROJECTS = (ROOT / "clients" / "python", ROOT)
LIMIT_S: Final = 1200.0
MEGA: Final = 1_000_000
OURS: Final = "reasond"
# Each wheel lists the sizes of its files; pip is not part of any program.
_DESCRIBE: Final = """
import importlib.metadata as metadata, json, sys
found = [one for one in metadata.distributions() if one.name not in {"pip", "setuptools"}]
sizes = [file.size or 0 for one in found for file in one.files or ()]
print(json.dumps({"bytes": sum(sizes), "distributions": len(found),
                  "versions": {name: metadata.version(name) for name in sys.argv[1:]}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A program to compare with: the packages that pip installs for it, and the names whose versions are reported.

    `constraints` keep its dependencies at versions that work together.
    """

    name: str
    requirements: Sequence[str]
    told: Sequence[str]
    constraints: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment: its interpreter, the size of its files in megabytes (millions of bytes), versions by name."""

    python: Path
    megabytes: float
    distributions: int
    versions: dict[str, str]

    def program(self, name: str) -> str:
        """Return the path of a command of the environment."""
        return str(self.python.with_name(name))


# The newest version that pip can install: 1.108 and later need a certifi that is not released yet.
LITELLM: Final = Peer(name="litellm", requirements=("litellm[proxy]==1.106.2",), told=("litellm",))
OPTILLM: Final = Peer(name="optillm", requirements=("optillm==0.4.0",), told=("optillm",))
LANGGRAPH: Final = Peer(
    name="langgraph",
    requirements=(
        "langgraph==1.2.22",
        "langgraph-checkpoint-sqlite==3.1.2",
        "langchain==1.4.7",
        "langchain-openai==1.7.3",
        "uvloop==0.23.0",
    ),
    told=("langgraph", "langchain", "langchain-core", "langchain-openai", "openai"),
    constraints=("langchain-core==1.7.2", "openai==3.52.0"),
)
PYDANTIC_AI: Final = Peer(
    name="pydantic-ai",
    requirements=("pydantic-ai-slim[openai]==2.68.0", "uvloop==0.23.0"),
    told=("pydantic-ai-slim", "openai"),
    constraints=("openai==3.52.0",),
)
OPENAI_AGENTS: Final = Peer(
    name="openai-agents",
    requirements=("openai-agents==0.24.0",),
    told=("openai-agents", "openai"),
    constraints=("openai==3.52.0",),
)


def install_peer(peer: Peer) -> Installed:
    """Return the environment of `peer`; make it first if it does not exist."""
    folder = CACHE / peer.name
    wanted = json.dumps([sys.version, peer.requirements, peer.constraints])
    stamp = folder / "stamp"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != hashlib.sha256(wanted.encode()).hexdigest():
        print(f"making an environment for {peer.name}; this takes a while, once", flush=True)
        _make(folder)
        listed = folder / "constraints.txt"
        listed.write_text("\n".join(peer.constraints), encoding="utf-8")
        _pip(folder, "install", "-c", str(listed), *peer.requirements)
        stamp.write_text(hashlib.sha256(wanted.encode()).hexdigest(), encoding="utf-8")
    return _describe(folder, peer.told)


def installed_ours() -> Installed:
    """Return an environment with wheels of both distributions, built from the current tree, and the extra uvloop.

    It is made again whenever the tree has changed.
    """
    folder, stamp = CACHE / OURS, CACHE / OURS / "stamp"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != _tree_key():
        wheels = _wheels_of_ours()
        _make(folder)
        _pip(folder, "install", "--no-deps", *map(str, sorted(wheels.glob("*.whl"))))
        _pip(folder, "install", "-c", str(CONSTRAINTS), "uvloop")
        stamp.write_text(_tree_key(), encoding="utf-8")
    return _describe(folder, ("reasond-server", "grpcio", "aiohttp", "uvloop"))


def wheels_megabytes() -> tuple[float, int]:
    """Return the size of the wheels of the base install, in millions of bytes, and their number."""
    installed_ours()
    sizes = [wheel.stat().st_size for wheel in (CACHE / "wheels").glob("*.whl")]
    return sum(sizes) / MEGA, len(sizes)


def _wheels_of_ours() -> Path:
    """Build wheels of both distributions and collect the wheels of the base install; return their folder."""
    folder = CACHE / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*command, "-c", str(CONSTRAINTS), *map(str, PROJECTS)], check=True, timeout=LIMIT_S)
    return folder


def _tree_key() -> str:
    """Return a key of the installed content of the tree."""
    files = [CONSTRAINTS, *(project / "pyproject.toml" for project in PROJECTS)]
    for project in PROJECTS:
        files += sorted(path for path in (project / "src").rglob("*") if path.suffix in {".py", ".txt"})
    parts = (str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() for path in files)
    return hashlib.sha256(sys.version.encode() + b"\0".join(parts)).hexdigest()


def _make(folder: Path) -> None:
    venv.create(folder, with_pip=False, clear=True)


def _pip(folder: Path, command: str, *arguments: str) -> None:
    """Run this environment's pip for another environment."""
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), command, "--quiet"]
    subprocess.run([*pip, "--only-binary", ":all:", *arguments], check=True, timeout=LIMIT_S)


def _describe(folder: Path, told: Sequence[str]) -> Installed:
    python = folder / "bin" / "python"
    said = subprocess.run(
        [str(python), "-c", _DESCRIBE, *told], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    found = json.loads(said.stdout)
    return Installed(
        python=python,
        megabytes=round(found["bytes"] / MEGA, 1),
        distributions=found["distributions"],
        versions=found["versions"],
    )

"""Refuse confusing names and missing docstrings.

- Every class and every module has a unique name. Two classes may share one if all but one give the reason on the line
  (`class Metrics:  # same name: what the client is shown`); two modules may if `SHARED_MODULES` gives the reason.
- A function's name contains a verb: a bare participle (`kept`, `_begun`) does not say what the function does. A
  property may be one.
- Every public module, class, function, method and property has a docstring. ruff checks this, and no `noqa` may turn
  its check off.

`python -m scripts.names [PATH...]` prints the offences below the paths, or all of them.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.size_budget import walk_definitions

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("src", "clients/python/src/reasond")
OTHER_ROOMS = ("scripts", "benchmarks", "tests", "examples")
GENERATED = "reasond/v1"
REASON = "# same name: "
REASON_OF_PARTICIPLE = "# named so: "
SHARED_MODULES: dict[str, str] = {
    "model": "the model: its port, and the errors it raises",
    "backends": "the servers of models: built from settings, and the command that examines them",
    "connection": "how a client reaches a server: its channel, and the options of the command line for it",
    "executions": "executions: their values, and the service that works on them",
    "prompts": "the prompts of a strategy; each package of a strategy has them",
    "repair": "the command `repair`, and what it shows",
    "requests": "what a caller asks for: written by the client, read from protobuf, checked by the service",
    "run": "a run: its life on the server, and what a person is shown of it",
    "strategies": "those that tests follow, and the command that lists those of a server",
    "strategy": "the port of strategies, and the class that a package of a strategy exports",
    "repairs": "repairs, in every layer: their values, their settings, their service",
    "turn": "the command `turn`, and what it shows",
    "turns": "turns, in every layer: their values, their settings, their service, the calls and commands of clients",
    "worker": "the process that works for the engine of repairs, and its command",
}
IRREGULAR_PARTICIPLES = """
beaten been begun bent bitten blown born borne bought bound bred broken brought built caught chosen clung crept dealt
done drawn driven drunk dug eaten fallen fed felt flown forbidden foreseen forgotten fought found frozen given gone
ground grown heard held hidden hung kept known laid led left lent lit lost made meant met mistaken overtaken
overthrown paid proved proven ridden risen rung said seen sent sewn shaken shorn shown shrunk slain slept slid sold
sought spent spoken sprung spun stolen stood struck stuck stung sung sunk swept sworn swum swung taken taught thrown
told torn trodden understood undone unseen untold upheld withdrawn withheld woken won worn woven written
"""
IRREGULAR = frozenset(IRREGULAR_PARTICIPLES.split())
VERBS_IN_ED = frozenset(
    {"bleed", "breed", "embed", "exceed", "feed", "heed", "need", "proceed", "seed", "shed", "speed", "succeed"}
)
PREFIXES = ("un", "re", "over", "fore", "mis", "out")
NOUNS = frozenset({"property", "cached_property", "setter", "fixture"})
NO_DOCSTRING = "noqa: D1"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A module: its path, its lines and its syntax tree."""

    path: Path
    lines: list[str]
    tree: ast.Module


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Offence:
    """A refused name and its place."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def read_sources(root: Path, rooms: Sequence[str]) -> list[Source]:
    """Read all hand-written modules below the `rooms` of `root`."""
    paths = sorted(path for room in rooms for path in (root / room).rglob("*.py") if GENERATED not in path.as_posix())
    texts = [(path.relative_to(root), path.read_text(encoding="utf-8")) for path in paths]
    return [Source(path=path, lines=text.splitlines(), tree=ast.parse(text)) for path, text in texts]


def is_participle(name: str) -> bool:
    """Return whether `name` is nothing but a participle: `_kept`, `settled`, `rewritten`."""
    word = name.strip("_")
    if "_" in word or word in VERBS_IN_ED:
        return False
    stems = {word, *(word.removeprefix(prefix) for prefix in PREFIXES)}
    return word.endswith("ed") or not stems.isdisjoint(IRREGULAR)


def list_decorators(node: Function) -> frozenset[str]:
    """Return the last part of the name of each decorator of `node`, such as `setter` for the setter of a property."""
    called = [entry.func if isinstance(entry, ast.Call) else entry for entry in node.decorator_list]
    return frozenset(ast.unparse(entry).rpartition(".")[2] for entry in called)


def find_participles(source: Source) -> Iterator[Offence]:
    """Yield the functions whose name is a bare participle and that give no reason for it."""
    for node in walk_definitions(source.tree):
        if not isinstance(node, Function) or not is_participle(node.name):
            continue
        if list_decorators(node).isdisjoint(NOUNS) and REASON_OF_PARTICIPLE not in source.lines[node.lineno - 1]:
            text = f"{node.name}() is a bare participle: say what it does, with a verb"
            yield Offence(path=source.path, line=node.lineno, text=text)


def find_undocumented(source: Source) -> Iterator[Offence]:
    """Yield the places that turn off ruff's check of docstrings."""
    for number, line in enumerate(source.lines, 1):
        if NO_DOCSTRING in line:
            yield Offence(path=source.path, line=number, text="a public name has a docstring: write it")


def find_shared_classes(sources: Sequence[Source]) -> Iterator[Offence]:
    """Yield the classes that share a name, if more than one of them gives no reason."""
    places: defaultdict[str, list[tuple[Source, int]]] = defaultdict(list)
    for source in sources:
        for node in walk_definitions(source.tree):
            if isinstance(node, ast.ClassDef) and REASON not in source.lines[node.lineno - 1]:
                places[node.name].append((source, node.lineno))
    for name, found in places.items():
        for source, line in found if len(found) > 1 else ():
            others = ", ".join(f"{other.path}:{at}" for other, at in found if (other, at) != (source, line))
            text = f"class {name} stands also at {others}: rename one, or say why behind `{REASON.strip()}`"
            yield Offence(path=source.path, line=line, text=text)


def find_shared_modules(sources: Sequence[Source], allowed: Mapping[str, str]) -> Iterator[Offence]:
    """Yield the modules that share a name which is not `allowed`, and the allowed names that no two modules share."""
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for source in sources:
        if not source.path.stem.startswith("__"):
            places[source.path.stem].append(source.path)
    for name, paths in places.items():
        for path in paths if len(paths) > 1 and name not in allowed else ():
            others = ", ".join(str(other) for other in paths if other != path)
            yield Offence(path=path, line=1, text=f"the module is called like {others}: rename one, or give a reason")
    for name in allowed:
        if len(places[name]) < 2:  # noqa: PLR2004 - a name is shared from two on
            text = f"{name!r} is no longer the name of two modules: remove it from SHARED_MODULES"
            yield Offence(path=Path("scripts/names.py"), line=1, text=text)


def find_offences(root: Path, allowed: Mapping[str, str]) -> list[Offence]:
    """Return all offences of the tree at `root`, ordered by place."""
    shipped = read_sources(root, SHIPPED)
    others = read_sources(root, OTHER_ROOMS)
    found = [*find_shared_classes(shipped), *find_shared_modules(shipped, allowed)]
    found += [offence for source in [*shipped, *others] for offence in find_participles(source)]
    found += [offence for source in shipped for offence in find_undocumented(source)]
    return sorted(found)


def main(arguments: Sequence[str]) -> int:
    """Print the offences below the paths in `arguments`, or all of them; return 1 if there are any, else 0."""
    gc.disable()  # It would look through each syntax tree many times while the trees grow.
    below = [Path(argument).resolve().relative_to(ROOT) for argument in arguments] or [Path()]
    offences = [
        offence
        for offence in find_offences(ROOT, SHARED_MODULES)
        if any(offence.path.is_relative_to(path) for path in below)
    ]
    for offence in offences:
        print(offence)
    print(f"{len(offences)} offences")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Files that candidates must not change: tests, and the configuration of tests, builds, linters and CI.

A candidate that could change them would pass checks without a repair. This is one of several lines of defence: code
that is not protected can still lie to tests that run in its process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

_FOLDER_NAMES: Final = """
    test tests __tests__ __mocks__ __snapshots__ spec specs testdata e2e cypress .circleci .buildkite .husky
    .devcontainer .mvn .gradle gradle buildsrc .cargo .config .vscode .idea node_modules vendor site-packages pytest
    _pytest pluggy unittest
"""
_FOLDERS: Final = frozenset(_FOLDER_NAMES.split())
"""Names of folders; whatever is below them is protected."""

_ALL: Final = """
    makefile gnumakefile *.mk justfile .justfile taskfile.y*ml dockerfile* *.dockerfile docker-compose*.y*ml
    compose*.y*ml .travis.yml azure-pipelines*.y*ml jenkinsfile* .drone.yml bitbucket-pipelines.yml appveyor.yml
    .appveyor.yml codecov.yml .codecov.yml .pre-commit-config.yaml .editorconfig .env .env.* .envrc .tool-versions
    mise.toml build.bazel workspace.bazel module.bazel .bazelrc cmakelists.txt sonar-project.properties
"""
_PYTHON: Final = """
    test_*.py *_test.py tests.py test.py conftest.py sitecustomize.py usercustomize.py *.pth pytest.py _pytest.py
    pluggy.py unittest.py pyproject.toml setup.py setup.cfg manifest.in tox.ini noxfile.py pytest.ini .pytest.ini
    pytest.toml .pytest.toml .coveragerc mypy.ini .mypy.ini ruff.toml .ruff.toml .flake8 .pylintrc pylintrc .bandit
    .isort.cfg .pydocstyle pyrightconfig.json pyre_configuration requirements*.txt requirements*.in constraints*.txt
    pipfile pipfile.lock poetry.lock uv.lock pdm.lock environment.y*ml .python-version hatch.toml pdm.toml
    entry_points.txt
"""
_NODE: Final = """
    *.test.* *.spec.* *-test.js *-test.ts *_test.js *_test.ts test.js test.ts test.mjs test.cjs package.json
    package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml pnpm-workspace.yaml bun.lock bun.lockb bunfig.toml
    .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs .nvmrc .node-version deno.json deno.jsonc deno.lock tsconfig*.json
    jsconfig*.json jest.config.* jest.setup.* jest-*.json setuptests.* vitest.* vite.config.* karma.conf.* .mocharc*
    mocha.opts ava.config.* jasmine.json playwright.config.* cypress.config.* cypress.json wdio.conf.* babel.config.*
    .babelrc* .swcrc eslint.config.* .eslintrc* .eslintignore .prettierrc* prettier.config.* biome.json* .nycrc*
    .c8rc* webpack.config.* rollup.config.* esbuild.* gulpfile.* gruntfile.* turbo.json nx.json lerna.json
"""
_GO: Final = "*_test.go go.mod go.sum go.work go.work.sum .golangci.* magefile.go .goreleaser.*"
_JAVA: Final = """
    pom.xml build.gradle* settings.gradle* gradle.properties gradlew gradlew.bat mvnw mvnw.cmd build.sbt lombok.config
    checkstyle*.xml pmd*.xml spotbugs*.xml findbugs*.xml detekt*.yml junit-platform.properties org.junit.* testng*.xml
"""
_PATTERNS: Final = tuple(f"{_ALL} {_PYTHON} {_NODE} {_GO} {_JAVA}".split())
"""Patterns of names of files, in small letters."""

_HUMPED_NAMES: Final = """
    Test*.java *Test.java *Tests.java *TestCase.java *IT.java *Test.kt *Tests.kt *Spec.kt *Test.groovy *Spec.groovy
    *Test.scala *Spec.scala *Spec.js *Spec.ts
"""
_HUMPED: Final = tuple(_HUMPED_NAMES.split())
"""Patterns in which capitals begin words, so that Latest.java is no test."""

_FOLDER_PATTERNS: Final = ("*.egg-info", "*.dist-info")


def is_protected_by_default(path: str) -> bool:
    """Return whether a file is one of tests, or configures tests, builds, linters or CI."""
    *folders, name = path.casefold().split("/")
    if any(folder in _FOLDERS or _matches_any(folder, _FOLDER_PATTERNS) for folder in folders):
        return True
    return _matches_any(name, _PATTERNS) or _matches_any(path.rpartition("/")[2], _HUMPED)


def build_protection(editable: Sequence[str]) -> Callable[[str], bool]:
    """Return what says whether a file is protected: those protected by default, without those of `editable`.

    `editable` are glob patterns. `*` and `?` stand for characters of one name, `**` for any number of folders. A
    pattern without a slash is that of a name in any folder; one that ends with a slash means all below the folder.
    """
    patterns = [_read_pattern(pattern) for pattern in editable]

    @lru_cache(maxsize=4096)
    def is_protected(path: str) -> bool:
        names = path.split("/")
        return is_protected_by_default(path) and not any(_matches(names, pattern) for pattern in patterns)

    return is_protected


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _read_pattern(pattern: str) -> Sequence[str]:
    parts = [part for part in pattern.removeprefix("./").split("/") if part]
    if pattern.endswith("/"):
        parts.append("**")
    return parts if "/" in pattern else ["**", *parts]


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern, in time proportional to their product."""
    ends = {0}
    for part in pattern:
        if part == "**":
            ends = set(range(min(ends), len(names) + 1)) if ends else set()
        else:
            ends = {end + 1 for end in ends if end < len(names) and fnmatchcase(names[end], part)}
    return len(names) in ends

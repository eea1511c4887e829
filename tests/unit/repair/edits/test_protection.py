from __future__ import annotations

import pytest

from reasond_server.repair.edits.protection import build_protection, is_protected_by_default

PROTECTED = """
    tests/a.py test_a.py pkg/a_test.py pkg/tests/deep/helper.py conftest.py src/conftest.py pytest.ini tox.ini setup.cfg
    pyproject.toml setup.py noxfile.py .coveragerc ruff.toml .flake8 mypy.ini requirements-dev.txt sitecustomize.py
    src/usercustomize.py x.pth pytest.py _pytest/runner.py unittest/case.py a.egg-info/entry_points.txt TESTS/a.py
    package.json package-lock.json jest.config.ts .mocharc.yml src/a.test.ts src/a.spec.js __tests__/a.js
    src/__mocks__/fs.js tsconfig.build.json .eslintrc.json vitest.config.mts babel.config.js node_modules/x/index.js
    spec/aSpec.js yarn.lock
    a_test.go go.mod go.sum pkg/testdata/x.json vendor/x/y.go .golangci.yml Makefile
    src/test/java/a/B.java AppTest.java src/main/java/a/TestUtil.java pom.xml build.gradle.kts gradle/wrapper/x.jar
    mvnw checkstyle.xml src/it/FooIT.java META-INF/services/org.junit.platform.launcher.TestExecutionListener
    .circleci/config.yml azure-pipelines.yml Jenkinsfile .travis.yml .pre-commit-config.yaml Dockerfile .env
"""


@pytest.mark.parametrize("path", PROTECTED.split())
def test_tests_and_configuration_are_protected(path: str) -> None:
    assert is_protected_by_default(path)


OPEN = """
    src/a.py a.py contest.py src/attest.py latest.py testing/model.py src/testament.py package.py README.md docs/a.md
    index.js src/package.ts src/latest.js src/inspect.js main.go protest.go src/main/java/a/Latest.java Audit.java
    Credit.java Contest.java Request.java data/config.json src/specification.py env.py environment.py
"""


@pytest.mark.parametrize("path", OPEN.split())
def test_sources_are_not_protected(path: str) -> None:
    assert not is_protected_by_default(path)


@pytest.mark.parametrize(
    ("pattern", "lifted", "still"),
    [
        ("tests/helpers.py", "tests/helpers.py", "tests/test_a.py"),
        ("tests/**", "tests/a/b/test_c.py", "src/tests/a.py"),
        ("tests/", "tests/a/b.py", "conftest.py"),
        ("tests/*.py", "tests/test_a.py", "tests/a/test_b.py"),
        ("**/conftest.py", "a/b/conftest.py", "a/b/tests/x.py"),
        ("**/conftest.py", "conftest.py", "setup.py"),
        ("pyproject.toml", "sub/pyproject.toml", "setup.cfg"),
        ("./setup.py", "setup.py", "sub/setup.py"),
        ("src/**/test_*.py", "src/test_a.py", "test_a.py"),
        ("test_[ab].py", "test_a.py", "test_c.py"),
        ("test_?.py", "test_a.py", "test_ab.py"),
        ("**", "tests/a.py", ""),
    ],
)
def test_editable_patterns_lift_the_protection(pattern: str, lifted: str, still: str) -> None:
    is_protected = build_protection([pattern])
    assert not is_protected(lifted)
    assert not still or is_protected(still)


def test_a_hostile_pattern_takes_no_time() -> None:
    is_protected = build_protection(["**/a*" * 40 + "/" + "*a" * 40 + "/b"])
    assert is_protected("tests/" + "a/" * 200 + "a" * 200)

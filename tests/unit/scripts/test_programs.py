"""Packages of Debian and PyPI are installed without questions, and only if they are missing and can be installed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import programs
from scripts.programs import find_gguf, install_debian, install_gguf, install_pypi

APT = """#!{python}
import json, os, sys
from pathlib import Path

log = Path(__file__).with_name("calls")
with log.open("a") as file:
    quiet = os.environ.get("DEBIAN_FRONTEND") == "noninteractive" and not sys.stdin.read()
    print(json.dumps({{"arguments": sys.argv[1:], "is_quiet": quiet}}), file=file)
fails = {fails}
sys.exit(len(log.read_text().splitlines()) <= fails)
"""


class Apt:
    """An apt-get on the PATH that notes its calls and fails the first `fails` times."""

    def __init__(self, folder: Path, *, fails: int = 0) -> None:
        self._log = folder / "calls"
        program = folder / "apt-get"
        program.write_text(APT.format(python=sys.executable, fails=fails), encoding="utf-8")
        program.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """Return the arguments of each call without options; assert that no call could have asked a question."""
        lines = self._log.read_text("utf-8").splitlines() if self._log.exists() else []
        found = [json.loads(line) for line in lines]
        assert all(one["is_quiet"] for one in found)
        assert all("Dpkg::Options::=--force-confold" in one["arguments"] for one in found)
        assert all("-y" in one["arguments"] for one in found if "install" in one["arguments"])
        return [[word for word in one["arguments"] if word[0].islower()] for one in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the only one on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_missing_package_is_installed_without_fetching_lists(folder: Path) -> None:
    apt = Apt(folder)
    assert install_debian("redis-server", "redis-server", is_root=True) == "redis-server was installed"
    assert apt.calls() == [["install", "redis-server"]]


@pytest.mark.slow
@pytest.mark.parametrize("fails", [1, 2])
def test_lists_are_fetched_where_that_did_not_work_even_if_some_cannot_be(folder: Path, fails: int) -> None:
    apt = Apt(folder, fails=fails)
    assert install_debian("small", "small", is_root=True) == "small was installed"
    assert apt.calls() == [["install", "small"], ["update"], ["install", "small"]]


def test_what_cannot_be_installed_is_a_note(folder: Path) -> None:
    assert install_debian("small", "small", is_root=True).startswith("note: small was not installed")
    apt = Apt(folder, fails=9)
    assert install_debian("small", "small", is_root=True).startswith("note: small was not installed; apt-get's")
    assert len(apt.calls()) == 3
    assert "takes root" in install_debian("small", "small", is_root=False)
    assert len(apt.calls()) == 3


def test_what_is_there_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = Apt(folder)
    versioned = folder / "postgresql" / "15" / "bin"
    versioned.mkdir(parents=True)
    for program in (folder / "small", versioned / "initdb"):
        program.touch(mode=0o755)
    monkeypatch.setattr(programs, "DEBIAN_POSTGRES", folder / "postgresql")
    assert install_debian("small-package", "small", is_root=True) == "small-package is there"
    assert install_debian("postgresql", "initdb", is_root=True) == "postgresql is there"
    assert apt.calls() == []


def test_an_installation_that_does_not_end_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "apt-get"
    program.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(programs, "LIMIT_S", 0.01)
    assert install_debian("small", "small", is_root=True) == "note: small was not installed within 0.01 s"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/usr/bin/apt-get").exists(), reason="no Debian")
def test_the_real_apt_understands_how_it_is_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wrapper = folder / "apt-get"
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/apt-get --simulate "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin:/bin:/usr/sbin:/sbin")
    # Every Debian has this package, so apt-get fetches and changes nothing.
    assert install_debian("base-files", "no-such-program", is_root=True) == "base-files was installed"
    assert "0 newly installed" in capfd.readouterr().out


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the package `small` of PyPI, whose program `go` says "hello"; pip finds nothing else."""
    files = {
        "go/bin/go": "#!/bin/sh\necho hello\n",
        "small-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1\n",
        "small-1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "small-1.dist-info/RECORD": "",
        "small/model.gguf": "GGUF of a test",
    }
    with zipfile.ZipFile(tmp_path / "small-1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16
            wheel.writestr(entry, text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(programs, "BIN", tmp_path / "bin")
    return tmp_path


@pytest.mark.slow
def test_a_program_of_pypi_is_installed_where_the_system_has_none(folder: Path, index: Path) -> None:
    assert install_pypi("small==1", ["go"]) == "small==1 was installed"
    done = subprocess.run([index / "bin" / "go"], capture_output=True, text=True, check=True)
    assert done.stdout == "hello\n"
    (folder / "go").symlink_to(index / "bin" / "go")
    assert install_pypi("small==2", ["go"]) == "go: there"


@pytest.mark.slow
def test_a_package_that_pypi_does_not_have_is_a_note(folder: Path, index: Path) -> None:
    assert install_pypi("small==3", ["go"]).startswith("note: small==3 was not installed; pip's message")
    assert not (index / "bin").exists()
    assert not (folder / "go").exists()


@pytest.mark.slow
def test_the_model_file_of_a_package_is_kept_if_it_is_the_right_one(index: Path) -> None:
    digest = hashlib.sha256(b"GGUF of a test").hexdigest()
    assert install_gguf("small==3", digest).startswith("note: small==3 was not downloaded; pip's message")
    assert install_gguf("small==1", "0" * 64) == f"note: small==1 holds no model file with the SHA-256 {'0' * 64}"
    assert install_gguf("small==1", digest) == "the model of small==1 was downloaded"
    assert find_gguf(digest).read_bytes() == b"GGUF of a test"
    assert list(find_gguf(digest).parent.iterdir()) == [find_gguf(digest)]
    (index / "small-1-py3-none-any.whl").unlink()
    assert install_gguf("small==1", digest) == "the model of small==1 is there"

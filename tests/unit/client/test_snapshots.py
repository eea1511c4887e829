"""What the client sends of a folder, what it leaves out and says so, and how it uploads the rest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, Client, UnavailableError
from reasond.snapshots import BATCH_BYTES, MAX_FILE_BYTES, FolderFiles, read_folder
from reasond.v1 import repair_service_pb2 as pb
from reasond.v1 import repairs_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.client.conftest import ScriptedServer

KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n"
SENT = {
    "pkg/a.py": b"print(1)\n",
    "pkg/b.py": b"",
    "pkg/again.py": b"print(1)\n",
    "environment.yml": b"x",
    "id_rsa.pub": b"ssh-rsa",
    "Ünïcode.txt": "ä".encode(),
    "large": bytes(MAX_FILE_BYTES),
}
LEFT_OUT: Mapping[str, tuple[bytes, str]] = {
    ".env": (b"KEY=1", "it may hold a secret"),
    "pkg/.env.local": (b"KEY=1", "it may hold a secret"),
    "server.PEM": (b"x", "it may hold a secret"),
    "pkg/id_rsa": (b"x", "it may hold a secret"),
    "deploy": (KEY, "a private key"),
    "too_large": (bytes(MAX_FILE_BYTES + 1), f"larger than {MAX_FILE_BYTES} bytes"),
    "pkg/.gitignore": (b"build/\n", "servers take no name that begins with .git"),
    "trailing.": (b"", "its name has a character that no server takes"),
    "new\nline": (b"", "its name has a character that no server takes"),
}
LEFT_OUT_FOLDERS = {
    "node_modules/": "a folder of tools",
    "pkg/__pycache__/": "a folder of tools",
    "own_env/": "a folder of tools",
    ".ssh/": "it may hold a secret",
    ".github/": "servers take no name that begins with .git",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, content in (*SENT.items(), *((name, content) for name, (content, _) in LEFT_OUT.items())):
        put(root / name, content)
    for name in ("node_modules/x/y.js", "pkg/__pycache__/a.pyc", ".ssh/config", ".github/workflows/x.yml"):
        put(root / name, b"x")
    for name in ("own_env/pyvenv.cfg", "own_env/bin/python"):
        put(root / name, b"x")
    (root / "pkg" / "a.py").chmod(0o755)
    put(tmp_path / "outside" / "secret", b"outside")
    (root / "link").symlink_to(tmp_path / "outside" / "secret")
    (root / "linked").symlink_to(tmp_path / "outside")
    return root


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *identity, *arguments], cwd=root, env=environ, check=True, capture_output=True, timeout=180)


def contents_of(read: FolderFiles) -> dict[str, bytes]:
    files = {entry.path: entry for entry in read.manifest}
    for entry in files.values():
        (content,) = read.read_contents([entry])
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (entry.digest, entry.size_bytes)
    return {path: read.read_contents([entry])[0] for path, entry in files.items()}


def reasons_of(read: FolderFiles) -> dict[str, str]:
    return {each.path: each.reason for each in read.left_out}


def test_a_folder_without_git_is_walked_and_what_is_left_out_is_said(folder: Path) -> None:
    read = read_folder(folder)
    assert contents_of(read) == SENT
    assert [entry.path for entry in read.manifest if entry.is_executable] == ["pkg/a.py"]
    expected = {name: reason for name, (_, reason) in LEFT_OUT.items()} | LEFT_OUT_FOLDERS
    assert reasons_of(read) == expected | {"link": "a symbolic link", "linked/": "a symbolic link"}


def test_in_a_repository_git_says_which_files_there_are(folder: Path) -> None:
    put(folder / "build" / "ignored.py", b"x")
    put(folder / "deleted.py", b"x")
    put(folder / ".gitignore", b"build/\nown_env/\n")
    put(folder / "linked_later" / "secret", b"x")
    git(folder, "init")
    git(folder, "add", "--force", "pkg", "deleted.py", "environment.yml", "linked_later", ".env")
    git(folder, "commit", "-m", "one")
    (folder / "deleted.py").unlink()
    (folder / "linked_later" / "secret").unlink()
    (folder / "linked_later").rmdir()
    (folder / "linked_later").symlink_to(folder.parent / "outside")
    git(folder, "init", "nested")
    put(folder / "nested" / "a.py", b"x")
    read = read_folder(folder)
    assert contents_of(read) == SENT
    reasons = reasons_of(read)
    assert reasons["nested/"] == "a repository of its own"
    assert reasons["linked_later/"] == "a symbolic link"
    assert reasons[".env"] == "it may hold a secret"
    assert not [name for name in reasons if name.startswith(("build", "deleted", "own_env", ".git/"))]
    assert set(contents_of(read_folder(folder / "pkg"))) == {"a.py", "b.py", "again.py"}


def test_variables_of_a_hook_do_not_lead_to_another_repository(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(folder, "init")
    git(tmp_path, "init", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert contents_of(read_folder(folder)) == SENT


def test_a_repository_that_git_does_not_list_is_refused_because_nothing_else_knows_what_it_ignores(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".git").mkdir()
    with pytest.raises(ValueError, match="git does not list the files"):
        read_folder(folder)
    monkeypatch.setenv("PATH", str(folder / "nowhere"))
    with pytest.raises(ValueError, match="install it"):
        read_folder(folder)


def test_a_folder_without_files_to_send_is_refused(tmp_path: Path) -> None:
    put(tmp_path / ".env", b"x")
    with pytest.raises(ValueError, match="has no file to send"):
        read_folder(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        read_folder(tmp_path / ".env")


def test_a_name_that_is_no_unicode_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "a", b"x")
    try:
        put(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")), b"x")
    except OSError:
        pytest.skip("this file system refuses such a name")
    assert reasons_of(read_folder(tmp_path)) == {"\\udcff": "its name is no Unicode"}


def test_batches_fit_into_a_request_and_have_each_content_once(tmp_path: Path) -> None:
    for index in range(8):
        put(tmp_path / f"{index}", bytes([index]) * MAX_FILE_BYTES)
    put(tmp_path / "copy", bytes([0]) * MAX_FILE_BYTES)
    read = read_folder(tmp_path)
    digests = list(dict.fromkeys(entry.digest for entry in read.manifest))
    batches = list(read.split(digests))
    assert [len(batch) for batch in batches] == [3, 3, 2]
    assert max(sum(entry.size_bytes for entry in batch) for batch in batches) <= BATCH_BYTES
    assert [entry.digest for batch in batches for entry in batch] == digests


def test_a_file_that_changes_meanwhile_is_told(tmp_path: Path) -> None:
    put(tmp_path / "a", b"x")
    read = read_folder(tmp_path)
    put(tmp_path / "a", b"y")
    with pytest.raises(ValueError, match="'a' changed while it was uploaded"):
        read.read_contents(read.manifest)
    (tmp_path / "a").unlink()
    with pytest.raises(ValueError, match="'a' changed while it was uploaded"):
        read.read_contents(read.manifest)


@pytest.fixture(params=["async", "sync"])
def upload(request: pytest.FixtureRequest, server: ScriptedServer) -> Any:
    """A function that uploads a folder with a client."""

    async def asynchronously(path: Path) -> Any:
        async with AsyncClient(server.target) as client:
            return await client.upload_snapshot(path)

    def blocking(path: Path) -> Any:
        with Client(server.target) as client:
            return client.upload_snapshot(path)

    return blocking if request.param == "sync" else lambda path: asyncio.run(asynchronously(path))


def answer_of(*missing: bytes) -> pb.CreateSnapshotResponse:
    digests = [hashlib.sha256(content).hexdigest() for content in missing]
    return pb.CreateSnapshotResponse(snapshot=repairs_pb2.Snapshot(snapshot_id="s1"), missing=digests)


def test_only_what_is_missing_is_sent_until_nothing_is(upload: Any, server: ScriptedServer, tmp_path: Path) -> None:
    for name, content in {"a": b"1", "b": b"22", "c": b"333", ".env": b"x"}.items():
        put(tmp_path / name, content)
    server.answers("CreateSnapshot", answer_of(b"1", b"333"), answer_of(b"333"), answer_of())
    done = upload(tmp_path)
    assert (done.snapshot_id, done.sent_contents, done.sent_bytes) == ("s1", 3, 7)
    assert [each.path for each in done.left_out] == [".env"]
    assert [list(call.request.contents) for call in server.of("UploadBlobs")] == [[b"1", b"333"], [b"333"]]
    manifests = [call.request for call in server.of("CreateSnapshot")]
    assert [entry.path for entry in manifests[0].manifest] == ["a", "b", "c"]
    assert manifests == [manifests[0]] * 3


def test_a_folder_that_the_server_has_sends_nothing(upload: Any, server: ScriptedServer, tmp_path: Path) -> None:
    put(tmp_path / "a", b"1")
    server.answers("CreateSnapshot", answer_of())
    assert upload(tmp_path).sent_contents == 0
    assert [call.method for call in server.calls] == ["CreateSnapshot"]


def test_a_server_that_keeps_nothing_is_not_asked_forever(upload: Any, server: ScriptedServer, tmp_path: Path) -> None:
    put(tmp_path / "a", b"1")
    server.answers("CreateSnapshot", *[answer_of(b"1")] * 9)
    with pytest.raises(UnavailableError, match="misses 1 contents, though they were uploaded 3 times"):
        upload(tmp_path)
    assert len(server.of("UploadBlobs")) == 3

"""The confinement of a job at each level, in the form of the shepherd's order."""

from __future__ import annotations

import os
import platform
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxFailedError
from reasond_server.sandbox.scratch import NOBODY
from reasond_server.types.repairs import SandboxLevel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.sandbox.shepherd.order import Confinement

WORKSPACE = "/workspace"
TEMPORARY = "/tmp"  # noqa: S108 - inside the sandbox, where it belongs to the job alone
_FILTERS = Path(__file__).parent / "filters"
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SYSTEM_FILES = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "os-release"),
    *("debian_version", "ssl/openssl.cnf", "java*", "python*"),
)
# Of hundreds of files each.
_SYSTEM_FOLDERS = ("/etc/alternatives", "/etc/ssl/certs")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PROC_FILES = ("/proc/cpuinfo", "/proc/meminfo", "/proc/version", "/proc/filesystems", "/sys/devices/system/cpu")
# What a job has of its own, or nobody has.
_NOT_OF_AN_IMAGE = ("proc", "dev", "sys", "run", "tmp", "workspace")
_LOWEST_ABI, _ABI_WITH_SCOPES = 3, 6


class Confiner(Protocol):
    """Tells how jobs are held at one level."""

    level: SandboxLevel

    def confine(self, job: Job, private: Path) -> Confinement:
        """Return what holds `job`, whose temporary folders lie in `private`.

        Raises:
            SandboxFailedError: the level cannot hold such a job.
        """

    def place(self, job: Job, private: Path) -> tuple[str, str]:
        """Return the paths of workspace and temporary folder as the job sees them."""


class Bubblewrap:
    """Namespaces made by bubblewrap: the job sees what is mounted for it and nothing else, and has no network.

    Args:
        program: the absolute path of bubblewrap.
        has_users: whether jobs become the user whose workspace it is before bubblewrap starts.
        folder: a folder of the server for what all jobs see below /etc.
    """

    level = SandboxLevel.BWRAP

    def __init__(self, *, program: str, has_users: bool, folder: Path) -> None:
        self._program = program
        self._has_users = has_users
        self._etc = _copy_system_files(folder / "etc")

    def place(self, job: Job, private: Path) -> tuple[str, str]:  # noqa: ARG002 - the same for all jobs
        """Return the two paths, which are the same for all jobs."""
        return WORKSPACE, TEMPORARY

    def confine(self, job: Job, private: Path) -> Confinement:
        """Return the words for bubblewrap."""
        environment = job.environment
        staged = self._stage(environment, private)
        words = [self._program, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
        words += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--hostname", "sandbox", "--cap-drop", "ALL"]
        if environment.is_image and environment.root is not None:
            words += _mount_image(environment.root, staged.get(str(environment.root), str(environment.root)))
        else:
            words += [*_mount_system(), "--ro-bind", str(self._etc), "/etc"]
            words += [word for folder in _SYSTEM_FOLDERS for word in ("--ro-bind-try", folder, folder)]
        words += ["--proc", "/proc", "--dev", "/dev", "--bind", str(private / "shm"), "/dev/shm"]  # noqa: S108 - inside
        words += ["--remount-ro", "/dev", "--bind", str(private / "tmp"), TEMPORARY]
        # Later mounts hide earlier ones, so a folder comes before those inside it.
        for folder in sorted(list_folders(environment), key=lambda folder: len(folder.parts)):
            words += ["--ro-bind", staged.get(str(folder), str(folder)), str(folder)]
        words += ["--bind", str(job.folder), WORKSPACE, "--remount-ro", "/", "--chdir", WORKSPACE]
        for name, value in list_variables(job, *self.place(job, private)).items():
            words += ["--setenv", name, value]
        is_shared = not self._has_users and not environment.has_writable_sources
        return {
            "launcher": words,
            "readable": [],
            "writable": [],
            "devices": [],
            "is_scoped": True,
            "filter": find_filter("namespaces_shared" if is_shared else "namespaces"),
            "uid": find_user(job) if self._has_users else None,
            "staged": [[source, target] for source, target in staged.items()],
        }

    def _stage(self, environment: ExecutionEnvironment, private: Path) -> Mapping[str, str]:
        """Return where folders are mounted that the user of the jobs cannot reach, such as those in root's home."""
        image = (environment.root,) if environment.is_image and environment.root else ()
        staged: dict[str, str] = {}
        for folder in () if not self._has_users else (*image, *list_folders(environment)):
            if not may_others_reach(folder):
                target = private / f"staged{len(staged)}"
                target.mkdir()
                staged[str(folder)] = str(target)
        return staged


class Landlock:
    """Landlock, which needs no namespaces: the job sees the file system, but opens only what is allowed.

    Args:
        has_users: whether jobs become the user whose workspace it is.
        abi: the version of the kernel's Landlock; 0: it has none.

    Raises:
        SandboxFailedError: this kernel's Landlock is missing or too old.
    """

    level = SandboxLevel.LANDLOCK

    def __init__(self, *, has_users: bool, abi: int) -> None:
        if abi < _LOWEST_ABI:
            what = f"has version {abi} of Landlock" if abi else "has no Landlock, or it is switched off"
            raise SandboxFailedError(f"this kernel {what}; version {_LOWEST_ABI} (Linux 6.2) is the lowest")
        self._has_users = has_users
        self._is_scoped = abi >= _ABI_WITH_SCOPES
        self._system = [*(f"/{name}" for name in _SYSTEM), *_list_files(), *_SYSTEM_FOLDERS, *_PROC_FILES]

    def place(self, job: Job, private: Path) -> tuple[str, str]:
        """Return the real paths: nothing is mounted for the job."""
        return str(job.folder), str(private / "tmp")

    def confine(self, job: Job, private: Path) -> Confinement:
        """Return the paths that the job may open."""
        environment = job.environment
        if environment.is_image:
            raise SandboxFailedError(
                f"the environment {environment.name} is an image, which needs bubblewrap; give it a folder with tools"
            )
        for folder in list_folders(environment):
            if self._has_users and not may_others_reach(folder):
                raise SandboxFailedError(
                    f"jobs of root run as users without rights, who cannot reach {folder}; make it readable for "
                    "others, or run the server as another user"
                )
        return {
            "launcher": [],
            "readable": [*self._system, *map(str, list_folders(environment))],
            "writable": [*self.place(job, private)],
            "devices": list(_DEVICES),
            "is_scoped": self._is_scoped,
            "filter": find_filter("landlock" if self._is_scoped else "landlock_unscoped"),
            "uid": find_user(job) if self._has_users else None,
            "staged": [],
        }


def find_user(job: Job) -> int:
    """Return the user to whom the workspace of `job` was given.

    Raises:
        SandboxFailedError: it was given to nobody.
    """
    user = job.folder.stat().st_uid
    if user == 0:
        raise SandboxFailedError(f"{job.folder} was given to no user for jobs; open it as a workspace")
    return user


def list_variables(job: Job, workspace: str, temporary: str) -> dict[str, str]:
    """Return the variables of a job; `{workspace}`, `{tmp}` and `{root}` in those of the environment are paths."""
    environment = job.environment
    paths = {"{workspace}": workspace, "{tmp}": temporary, "{root}": str(environment.root or "/usr")}
    variables = {
        "PATH": os.pathsep.join(environment.search_path),
        "HOME": temporary,
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
    }
    for name, value in environment.variables.items():
        expanded = value
        for mark, path in paths.items():
            expanded = expanded.replace(mark, path)
        variables[name] = expanded
    return variables


def list_folders(environment: ExecutionEnvironment) -> Sequence[Path]:
    """Return the folders of an environment that jobs may read besides those of the system."""
    root = () if environment.root is None or environment.is_image else (environment.root,)
    return tuple(folder for folder in (*root, *environment.also_readable) if not folder.is_relative_to("/usr"))


def find_filter(kind: str) -> str:
    """Return the file with the filter of calls for this machine.

    Raises:
        SandboxFailedError: there is none for its architecture.
    """
    path = _FILTERS / f"{kind}.{platform.machine()}.bpf"
    if not path.exists():
        raise SandboxFailedError(f"there is no filter of calls for {platform.machine()}; x86_64 and aarch64 have one")
    return str(path)


def _list_files() -> list[str]:
    return [str(path) for pattern in _SYSTEM_FILES for path in sorted(Path("/etc").glob(pattern))]


def _mount_system() -> Iterator[str]:
    for name in _SYSTEM:
        yield from _mount_entry(Path("/"), name, "")


def _mount_image(root: Path, place: str) -> Iterator[str]:
    """Mount what the image holds at its top, one by one, so that our own folders can stand beside it."""
    for name in sorted(path.name for path in root.iterdir()):
        if name not in _NOT_OF_AN_IMAGE:
            yield from _mount_entry(root, name, place)


def _mount_entry(root: Path, name: str, place: str) -> Iterator[str]:
    """Mount an entry of `root`, which bubblewrap reaches at `place`."""
    path = root / name
    if path.is_symlink():
        yield from ("--symlink", str(path.readlink()), f"/{name}")
    elif path.exists():
        yield from ("--ro-bind", f"{place}/{name}", f"/{name}")


def may_others_reach(path: Path) -> bool:
    """Return whether a user who owns nothing may go to `path` and read what is there."""
    try:
        return may_others_pass(path.parent) and bool(path.resolve(strict=True).stat().st_mode & 0o004)
    except OSError:
        return False


def may_others_pass(folder: Path) -> bool:
    """Return whether a user who owns nothing may go through `folder`."""
    try:
        real = folder.resolve(strict=True)
        return all(one.stat().st_mode & 0o001 for one in (real, *real.parents))
    except OSError:
        return False


def _copy_system_files(folder: Path) -> Path:
    """Copy what programs need below /etc, and write accounts that tell of nobody.

    The copy is one mount for each job instead of many. Large folders are empty in it and mounted by themselves: to copy
    hundreds of files, and to remove them, took 0.7 s of a processor where servers started one after another.
    """
    for large in _SYSTEM_FOLDERS:
        (folder / Path(large).relative_to("/etc")).mkdir(parents=True)
    for path in map(Path, _list_files()):
        target = folder / path.relative_to("/etc")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            # Links stay what they are; what this process may not read, jobs may not either.
            with suppress(shutil.Error):
                shutil.copytree(path, target, symlinks=True)
        else:
            with suppress(OSError):
                shutil.copyfile(path, target)
    contents = {
        "passwd": f"nobody:x:{NOBODY}:{NOBODY}:nobody:{TEMPORARY}:/bin/sh\n",
        "group": f"nogroup:x:{NOBODY}:\n",
        "hosts": "127.0.0.1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="ascii")
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = Path(place, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o444)
    return folder

"""Run every program at one level and print what came of each: `python -m tests.sandbox_escapes.driver LEVEL FOLDER`.

A process of its own, so that it can run as another user, with the standard library and the packages below its folder.
With the level `none` the programs run without a sandbox, which shows what they are worth.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from reasond_server.sandbox.levels import OpenedSandbox, SandboxOptions, find_interpreter, open_sandbox
from reasond_server.sandbox.sandbox import ExecutionEnvironment, Job, SandboxLimits
from reasond_server.sandbox.scratch import find_marked
from reasond_server.types.repairs import SandboxLevel, SourceFile
from tests.sandbox_escapes import bad_programs, files, processes

PRELUDE = Path(__file__).with_name("prelude.py").read_text(encoding="utf-8")
PROGRAMS = {**files.PROGRAMS, **processes.PROGRAMS}
LIMITS = SandboxLimits(wall_s=60.0, cpu_s=60.0)
AT_ONCE = 4
# Without installed packages, which no program uses.
PLAIN = ("-I", "-S")
TIME = 5
# What would harm others, or leave something behind, where nothing holds it.
NOT_PLAINLY = {
    *("end_everything", "end_the_shepherd", "slow_the_server", "live_on", "type_into_a_terminal"),
    *("make_shared_memory", "make_a_message_queue", "name_the_machine", "set_the_clock", "make_a_control_group"),
}


class Outside:
    """What the programs are after: files, sockets, shared memory, and a process to harm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open = folder / "open"
        self.open.mkdir()
        self.open.chmod(0o777)
        for name in ("lost", "moved", "writable"):
            (self.open / name).write_text(name, encoding="ascii")
            (self.open / name).chmod(0o666)
        self.secret = folder / "secret"
        self.secret.write_text("canary", encoding="ascii")
        self.secret.chmod(0o644)
        self.environment = folder / "environment"
        self.environment.mkdir()
        self.environment.chmod(0o777)
        self.abstract = f"reasond-test-{secrets.token_hex(8)}"
        self.touched: list[str] = []
        self.sockets = [
            self.listen("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self.listen("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            self.listen("stream", socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream")),
            self.listen("datagram", socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagram")),
            self.listen("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.abstract}"),
        ]
        for name in ("stream", "datagram"):
            (folder / name).chmod(0o777)
        self.libc = ctypes.CDLL(None)
        self.segment = self.libc.shmget(0, 4096, 0o1666)
        self.memory = Path("/dev/shm", self.abstract)  # noqa: S108 - what all users share
        self.memory.write_text("canary", encoding="ascii")
        self.memory.chmod(0o666)
        self.victim = subprocess.Popen(
            [sys.executable, *PLAIN, "-c", "import time\ntime.sleep(3600)"],
            stdin=subprocess.PIPE,
            env={"PLANTED": "PLANTED"},
            cwd=folder,
            start_new_session=True,
        )

    def listen(self, name: str, family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
        """Listen at `address`, and note if anybody comes."""
        one = socket.socket(family, kind)
        one.bind(address)
        if kind == socket.SOCK_STREAM:
            one.listen()

        def wait() -> None:
            try:
                one.accept() if kind == socket.SOCK_STREAM else one.recv(1)
            except OSError:
                return
            self.touched.append(name)

        threading.Thread(target=wait, daemon=True).start()
        return one

    def describe(self) -> dict[str, object]:
        """Return what the programs are told."""
        return {
            "secret": str(self.secret),
            "open": str(self.open),
            "environment": str(self.environment),
            "victim": self.victim.pid,
            "tcp": self.sockets[0].getsockname()[1],
            "udp": self.sockets[1].getsockname()[1],
            "stream": str(self.folder / "stream"),
            "datagram": str(self.folder / "datagram"),
            "abstract": self.abstract,
            "segment": self.segment,
        }

    def list_damage(self) -> list[str]:
        """Return what is not as it was."""
        found = {path.name: path.lstat() for path in self.open.iterdir()}
        writable = found.get("writable")
        as_it_was = {
            "the open folder": sorted(found) == ["lost", "moved", "writable"],
            "a file in the open folder": writable and (writable.st_size, writable.st_mode & 0o777) == (8, 0o666),
            "the times of a file": writable and writable.st_mtime != TIME,
            "the secret": self.secret.read_text(encoding="ascii") == "canary",
            "the shared memory": self.memory.read_text(encoding="ascii") == "canary",
            "the folder": not [path for path in self.folder.iterdir() if path.name.startswith("made")],
            "the environment": not list(self.environment.iterdir()),
            **self.compare_victim(),
        }
        return [
            *(f"{name} was reached" for name in self.touched),
            *(name for name, held in as_it_was.items() if not held),
        ]

    def compare_victim(self) -> dict[str, bool]:
        """Return for each thing of the process whether it is as it was."""
        if self.victim.poll() is not None:
            return {f"the process, which ended with {self.victim.returncode}": False}
        pid = self.victim.pid
        return {
            "the process is not traced": "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text(encoding="ascii"),
            "its priority": os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0),
            "its cores": os.sched_getaffinity(pid) == os.sched_getaffinity(0),
            "its limits": resource.prlimit(pid, resource.RLIMIT_NOFILE) == resource.getrlimit(resource.RLIMIT_NOFILE),
        }

    def close(self) -> None:
        """End and remove everything."""
        self.victim.kill()
        self.victim.wait()
        for one in self.sockets:
            one.close()
        self.libc.shmctl(self.segment, 0, None)
        self.memory.unlink(missing_ok=True)


async def run_all(level: SandboxLevel, folder: Path) -> None:
    """Run each program in a workspace of its own, and print a line of JSON for each and for the damage at the end."""
    interpreter, folders = find_interpreter(has_all=os.geteuid() != 0)
    scratch = folder / "scratch"
    scratch.mkdir()
    scratch.chmod(0o711)
    options = SandboxOptions(levels=(level,), folder=scratch)
    opened = await open_sandbox(options)
    if opened.sandbox.level is not level:
        write(json.dumps({"failure": opened.reason}))
        await opened.close()
        return
    marks = note_marks(opened)
    os.environ["PLANTED"] = "PLANTED"
    outside = Outside(folder)
    environment = ExecutionEnvironment(name="escapes", root=outside.environment, also_readable=folders)
    # Root's file as nobody's: each is the owner of nothing.
    tree = await opened.workspaces.write_tree([SourceFile(path="kept.py", content=b"kept")])
    base = next((opened._scratch.path / "trees").iterdir()) / "files"
    before = (base / "kept.py").stat()
    told = {**outside.describe(), "level": level.value, "base": str(base), "jobs": str(opened._scratch.path / "jobs")}
    places = asyncio.Semaphore(AT_ONCE)

    async def run(name: str, other: Path) -> None:
        program = f"{PRELUDE}\n{PROGRAMS[name]}\n"
        argument = repr({**told, "other": str(other)})
        async with places, tree.open_workspace({"program.py": program.encode()}) as workspace:
            argv = (interpreter, *PLAIN, "program.py", argument)
            job = Job(argv=argv, folder=workspace, environment=environment, limits=LIMITS)
            outcome = await opened.sandbox.run(job)
        text = outcome.output.decode(errors="replace")
        kept = (base / "kept.py").stat()
        if (base / "kept.py").read_bytes() != b"kept" or (kept.st_mode, kept.st_mtime) != (
            before.st_mode,
            before.st_mtime,
        ):
            text += " ESCAPED: the base was changed"
        write(json.dumps({"name": name, "output": text, "code": outcome.exit_code, "exceeded": outcome.exceeded}))

    try:
        async with tree.open_workspace({}) as other, asyncio.TaskGroup() as group:
            for name in PROGRAMS:
                group.create_task(run(name, other))
        write(json.dumps({"damage": outside.list_damage(), "survivors": list(find_marked(marks))}))
    finally:
        outside.close()
        await tree.remove()
        await opened.close()


def note_marks(opened: OpenedSandbox) -> set[str]:
    """Return a set that gets the marks of all jobs of `opened`."""
    marks = set()
    make_job = opened._scratch.make_job

    def note() -> tuple[int, Path]:
        mark, job_folder = make_job()
        marks.add(str(mark))
        return mark, job_folder

    opened._scratch.make_job = note  # type: ignore[method-assign] # one object of this program
    return marks


def write(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run_plainly(folder: Path) -> None:
    """Run the programs without a sandbox, each against an outside of its own, and print which ones get out."""
    if os.geteuid() == 0:
        raise SystemExit("the programs are not run as root without a sandbox")
    for name in sorted(PROGRAMS.keys() - NOT_PLAINLY):
        own = folder / name
        own.mkdir()
        (own / "work").mkdir()
        (own / "other").mkdir()
        (own / "other" / "kept.py").write_text("kept", encoding="ascii")
        outside = Outside(own)
        (own / "work" / "kept.py").write_text("kept", encoding="ascii")
        (own / "work" / "kept.py").chmod(0o444)
        (own / "work" / "program.py").write_text(f"{PRELUDE}\n{PROGRAMS[name]}\n", encoding="utf-8")
        told = {**outside.describe(), "level": "none", "base": str(own / "work"), "jobs": str(own)}
        argument = repr({**told, "other": str(own / "other")})
        done = subprocess.Popen(
            [sys.executable, *PLAIN, "program.py", argument],
            cwd=own / "work",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output, _ = done.communicate()
        damage = outside.list_damage()
        if (own / "work" / "kept.py").stat().st_mode & 0o222:
            damage.append("the base was changed")
        text = output.decode(errors="replace")
        write(json.dumps({"name": name, "output": text, "code": done.returncode, "damage": damage}))
        outside.close()
        shutil.rmtree(own, ignore_errors=True)


async def run_bad(level: SandboxLevel, folder: Path) -> None:
    """Run the bad programs one after the other, and print which limit ended each and what is left of it."""
    interpreter, folders = find_interpreter(has_all=os.geteuid() != 0)
    scratch = folder / "scratch"
    scratch.mkdir()
    scratch.chmod(0o711)
    opened = await open_sandbox(SandboxOptions(levels=(level,), folder=scratch))
    marks = note_marks(opened)
    environment = ExecutionEnvironment(name="bad", also_readable=folders)
    for name, (program, expected) in bad_programs.BAD_PROGRAMS.items():
        tree = await opened.workspaces.write_tree([SourceFile(path="job.py", content=program.encode())])
        # What fills something gets the time for it.
        wall_s = 1.5 if "wall_s" in expected else 60.0
        # What computes without end has shown it after some looks of the shepherd, and takes no more from others.
        cpu_s = 0.3 if "cpu_s" in expected else 20.0
        limits = SandboxLimits(
            wall_s=wall_s, cpu_s=cpu_s, memory_bytes=256 << 20, processes=64, disk_bytes=16 << 20, output_bytes=100_000
        )
        async with tree.open_workspace({}) as workspace:
            argv = (interpreter, *PLAIN, "job.py")
            outcome = await opened.sandbox.run(Job(argv=argv, folder=workspace, environment=environment, limits=limits))
            survivors = list(find_marked(marks))
        await tree.remove()
        found = {"name": name, "exceeded": outcome.exceeded, "size": len(outcome.output), "most": limits.output_bytes}
        write(json.dumps({**found, "survivors": survivors, "end": outcome.output[-200:].decode(errors="replace")}))
    kinds = ("workspaces", "jobs", "trees")
    left = [path.name for kind in kinds for path in (opened._scratch.path / kind).iterdir()]
    write(json.dumps({"left": left}))
    await opened.close()


async def serve(level: SandboxLevel, folder: Path) -> None:
    """Run the program `folder`/job.py until this process is killed, and print the mark of its job first."""
    interpreter, folders = find_interpreter(has_all=os.geteuid() != 0)
    opened = await open_sandbox(SandboxOptions(levels=(level,), folder=folder))
    make_job = opened._scratch.make_job

    def note() -> tuple[int, Path]:
        mark, job_folder = make_job()
        write(str(mark))
        return mark, job_folder

    opened._scratch.make_job = note  # type: ignore[method-assign] # one object of this program
    content = await asyncio.to_thread((folder / "job.py").read_bytes)
    tree = await opened.workspaces.write_tree([SourceFile(path="job.py", content=content)])
    environment = ExecutionEnvironment(name="killed", also_readable=folders)
    limits = SandboxLimits(wall_s=3600.0, cpu_s=3600.0, processes=64)
    async with tree.open_workspace({}) as workspace:
        write(str(workspace))
        argv = (interpreter, *PLAIN, "job.py")
        await opened.sandbox.run(Job(argv=argv, folder=workspace, environment=environment, limits=limits))


def main() -> None:
    """Run at the level that the arguments name."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    level, folder = sys.argv[1], Path(sys.argv[2])
    if sys.argv[3:] == ["bad"]:
        asyncio.run(run_bad(SandboxLevel(level), folder))
    elif sys.argv[3:] == ["serve"]:
        asyncio.run(serve(SandboxLevel(level), folder))
    elif level == "none":
        run_plainly(folder)
    else:
        asyncio.run(run_all(SandboxLevel(level), folder))


if __name__ == "__main__":
    main()

"""Write the seccomp filters of the sandbox, as bytes for each architecture; with --check only compare them.

A filter is a program of classic BPF over `struct seccomp_data`. What is not named is allowed, because toolchains of all
kinds run in the sandbox. What is named is refused because it reaches the kernel's less tested parts, another process,
or a network. Sources: linux/seccomp.h, linux/bpf_common.h, the tables of system calls of Linux 5.18 (450 is the last).
"""

from __future__ import annotations

import csv
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "src" / "reasond_server" / "sandbox" / "filters"
LAST_KNOWN = 450

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
FAKE = ERRNO  # the call returns 0 and does nothing
EPERM, ENOSYS = ERRNO | 1, ERRNO | 38

LOAD, EQUAL, GREATER, MASKED, RETURN, AND = 0x20, 0x15, 0x25, 0x45, 0x06, 0x54
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16

# AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 of linux/audit.h.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def read_numbers() -> Mapping[str, tuple[int | None, ...]]:
    """Return the numbers of calls on x86_64 and aarch64; None: the architecture has no such call."""
    with Path(__file__).with_name("system_calls.csv").open(encoding="ascii", newline="") as file:
        rows = csv.DictReader(file)
        return {row["call"]: tuple(int(row[name]) if row[name] else None for name in ARCHITECTURES) for row in rows}


NUMBERS = read_numbers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A comparison of the low 32 bits of an argument; `mask` is applied first."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What happens to calls by name: `action` if the test of `when` holds, or that of `unless` fails.

    Without a test the action is taken always.
    """

    calls: tuple[str, ...]
    action: int
    when: tuple[Test, ...] = ()
    unless: tuple[Test, ...] = ()


def name(text: str) -> tuple[str, ...]:
    """Return the names in `text`."""
    return tuple(text.split())


# clone3 takes its flags from memory, which a filter cannot read; the C libraries fall back to clone.
ABSENT = name("clone3 io_uring_setup io_uring_enter io_uring_register fsopen fsconfig fsmount fspick open_tree")
SYSTEM = name(
    "mount umount2 move_mount mount_setattr pivot_root chroot setns unshare swapon swapoff reboot sethostname "
    "setdomainname init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load "
    "kexec_file_load bpf perf_event_open userfaultfd add_key request_key keyctl open_by_handle_at name_to_handle_at "
    "quotactl quotactl_fd acct syslog settimeofday clock_settime adjtimex clock_adjtime iopl ioperm lookup_dcookie "
    "nfsservctl vhangup modify_ldt uselib ustat sysfs _sysctl fanotify_init fanotify_mark memfd_secret"
)
OTHER_PROCESSES = name(
    "ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd move_pages "
    "migrate_pages"
)
SHARED_MEMORY = name(
    "shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink "
    "mq_timedsend mq_timedreceive mq_notify mq_getsetattr"
)
NEW_NAMESPACES = 0x7E020000
# RLIMIT_RTTIME carries the mark of the job: a job that could lower it would not be found by it.
MARK = 15
SET_DUMPABLE, SET_MM = 4, 35
# TIOCSTI, TIOCLINUX, FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR.
REFUSED_CONTROLS = (0x5412, 0x541C, 0x40086602, 0x401C5820)
ANYBODY = (
    Rule(calls=ABSENT, action=ENOSYS),
    Rule(calls=(*SYSTEM, *OTHER_PROCESSES, *SHARED_MEMORY), action=EPERM),
    Rule(calls=("clone",), action=EPERM, when=(Test(argument=0, mask=NEW_NAMESPACES, values=()),)),
    Rule(calls=("setrlimit",), action=EPERM, when=(Test(argument=0, values=(MARK,)),)),
    Rule(calls=("prlimit64",), action=EPERM, when=(Test(argument=1, values=(MARK,)),)),
    Rule(calls=("prlimit64",), action=EPERM, unless=(Test(argument=0, values=(0,)),)),
    Rule(calls=("ioctl",), action=EPERM, when=(Test(argument=1, values=REFUSED_CONTROLS),)),
    # A process that is not dumpable hides its memory and its files from the shepherd, which counts them.
    Rule(calls=("prctl",), action=FAKE, when=(Test(argument=0, values=(SET_DUMPABLE,)),)),
    Rule(calls=("prctl",), action=EPERM, when=(Test(argument=0, values=(SET_MM,)),)),
    Rule(calls=("personality",), action=EPERM, unless=(Test(argument=0, values=(0, 0xFFFFFFFF)),)),
)
AF_UNIX, STREAM, SEQPACKET = 1, 1, 5
ONLY_LOCAL_SOCKETS = (Rule(calls=("socket",), action=EPERM, unless=(Test(argument=0, values=(AF_UNIX,)),)),)
# Jobs that run as the owner of shared files could make them writable, or change their times.
SHARED_FILES = (
    Rule(
        calls=name(
            "chmod fchmod fchmodat chown fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr "
            "fsetxattr removexattr lremovexattr fremovexattr"
        ),
        action=FAKE,
    ),
)
# Landlock bounds neither connecting to sockets with a path (before ABI 9) nor what is done to processes by id.
NO_NAMESPACES = (
    Rule(calls=name("socket connect inotify_init inotify_init1"), action=EPERM),
    Rule(calls=("socketpair",), action=EPERM, unless=(Test(argument=0, values=(AF_UNIX,)),)),
    Rule(calls=("socketpair",), action=EPERM, unless=(Test(argument=1, mask=0xF, values=(STREAM, SEQPACKET)),)),
    Rule(
        calls=name("sched_setaffinity sched_setscheduler sched_setparam sched_setattr"),
        action=EPERM,
        unless=(Test(argument=0, values=(0,)),),
    ),
    Rule(calls=("setpriority",), action=EPERM, unless=(Test(argument=0, values=(0,)),)),
    Rule(calls=("setpriority",), action=EPERM, unless=(Test(argument=1, values=(0,)),)),
    Rule(calls=("ioprio_set",), action=EPERM, unless=(Test(argument=0, values=(1,)),)),
    Rule(calls=("ioprio_set",), action=EPERM, unless=(Test(argument=1, values=(0,)),)),
)
# Before ABI 6 Landlock has no scope for signals. F_SETSIG, F_SETOWN and F_SETOWN_EX, FIOSETOWN and SIOCSPGRP send some.
NO_SIGNALS = (
    Rule(calls=name("kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal"), action=EPERM),
    Rule(calls=("fcntl",), action=EPERM, when=(Test(argument=1, values=(8, 10, 15)),)),
    Rule(calls=("ioctl",), action=EPERM, when=(Test(argument=1, values=(0x8901, 0x8902)),)),
)
FILTERS: Mapping[str, Sequence[Rule]] = {
    "namespaces": (*ANYBODY, *ONLY_LOCAL_SOCKETS),
    "namespaces_shared": (*ANYBODY, *ONLY_LOCAL_SOCKETS, *SHARED_FILES),
    "landlock": (*ANYBODY, *SHARED_FILES, *NO_NAMESPACES),
    "landlock_unscoped": (*ANYBODY, *SHARED_FILES, *NO_NAMESPACES, *NO_SIGNALS),
}


def instruct(code: int, operand: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    """Return one instruction, a `struct sock_filter`."""
    return struct.pack("<HBBI", code, jump_true, jump_false, operand)


def assemble(rules: Sequence[Rule], architecture: str) -> bytes:
    """Return the program for `architecture`; calls of another architecture, such as 32-bit ones, end the process."""
    column = list(ARCHITECTURES).index(architecture)
    parts = [
        instruct(LOAD, ARCHITECTURE_AT),
        instruct(EQUAL, ARCHITECTURES[architecture], 1, 0),
        instruct(RETURN, KILL_PROCESS),
        instruct(LOAD, NUMBER_AT),
        # Also the calls of x32, which have bit 30 set.
        instruct(GREATER, LAST_KNOWN, 0, 1),
        instruct(RETURN, ENOSYS),
    ]
    for rule in rules:
        for call in rule.calls:
            number = NUMBERS[call][column]
            if number is not None:
                parts.extend(assemble_call(rule, number))
    return b"".join([*parts, instruct(RETURN, ALLOW)])


def assemble_call(rule: Rule, number: int) -> Iterator[bytes]:
    """Yield the instructions of `rule` for one call; the number of the call is loaded before and after them."""
    body = b"".join(assemble_tests(rule))
    size = len(body) // 8
    yield instruct(EQUAL, number, 0, size)
    yield body


def assemble_tests(rule: Rule) -> Iterator[bytes]:
    """Yield what is done if the number is that of the call: return the action, or load the number again."""
    tests = rule.when or rule.unless
    if not tests:
        yield instruct(RETURN, rule.action)
        return
    (test,) = tests
    yield instruct(LOAD, ARGUMENTS_AT + 8 * test.argument)
    if not test.values:  # any bit of the mask
        yield instruct(MASKED, test.mask, 0, 1)
        yield instruct(RETURN, rule.action)
    else:
        yield instruct(AND, test.mask)
        is_refused = bool(rule.when)
        for index, value in enumerate(test.values):
            left = len(test.values) - index - 1
            # To the refusal behind the comparisons, or beyond it.
            to_end = left if is_refused else left + 1
            past = 0 if left or not is_refused else 1
            yield instruct(EQUAL, value, to_end, past)
        yield instruct(RETURN, rule.action)
    yield instruct(LOAD, NUMBER_AT)


def list_files() -> Iterator[tuple[Path, bytes]]:
    """Yield each file with what belongs into it."""
    for kind, rules in FILTERS.items():
        for architecture in ARCHITECTURES:
            yield FOLDER / f"{kind}.{architecture}.bpf", assemble(rules, architecture)


def main() -> int:
    """Write the filters, or with --check compare them."""
    stale = []
    for path, content in list_files():
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        elif not path.exists() or path.read_bytes() != content:
            stale.append(path.name)
    if stale:
        print(f"not as generated: {', '.join(stale)}; run python -m scripts.seccomp_filters")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

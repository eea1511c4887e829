"""Write the seccomp filters of the sandbox, as bytes for each architecture; with --check only compare them.

A filter is a program of classic BPF over `struct seccomp_data`. What is not named is allowed, because toolchains of all
kinds run in the sandbox. What is named is refused because it reaches the kernel's less tested parts, another process,
or a network. Sources: linux/seccomp.h, linux/bpf_common.h, the tables of system calls of Linux 5.18 (450 is the last).
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FOLDER = Path(__file__).resolve().parent.parent / "src" / "reasond_server" / "sandbox" / "filters"
LAST_KNOWN = 450

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
FAKE = ERRNO  # the call returns 0 and does nothing
EPERM, ENOSYS = ERRNO | 1, ERRNO | 38

LOAD, EQUAL, GREATER, MASKED, RETURN, AND = 0x20, 0x15, 0x25, 0x45, 0x06, 0x54
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16

# AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 of linux/audit.h.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Numbers on x86_64 and aarch64; None: the architecture has no such call.
NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "lchown": (94, None),
    "lookup_dcookie": (212, 18),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_getsetattr": (245, 185),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setrlimit": (160, 164),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
    "vhangup": (153, 58),
}


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

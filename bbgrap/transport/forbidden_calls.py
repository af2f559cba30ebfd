"""The calls that a confined process may not make, as a program for the kernel's filter (classic BPF, see seccomp(2)).

    another architecture       the process ends
    what is listed             EPERM
    clone3                     ENOSYS: the C library then makes threads by clone, whose flags can be looked at
    fallocate                  EOPNOTSUPP: it can shorten a file that others have mapped; the C library then writes
    clone, kill, socket ...    by their arguments: threads, itself, the internet
    shmget, msgget, semget     EPERM: what they make outlasts the process, and is outside of its limits

A list of what is forbidden, not of what is allowed: Python, numpy and onnxruntime of years to come shall run, too.
"""

from __future__ import annotations

import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""As the kernel calls them (`AUDIT_ARCH_*`)."""

_EPERM, _ENOSYS, _EOPNOTSUPP = 1, 38, 95
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_CLONE_THREAD = 0x10000
_INET, _INET6, _STREAM, _DATAGRAM = 2, 10, 1, 2
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into the terminal that a log goes to."""
_SIGNAL_OWNER = (0x8901, 0x8902)
"""FIOSETOWN and SIOCSPGRP: whom a descriptor signals. The kernel sends that signal, so no call that signals is needed."""
_SIGNAL_BY_DESCRIPTOR = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE and F_NOTIFY of fcntl: the same."""

_PLAIN: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setrlimit": (160, 164),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "personality": (135, 92),
    "open_by_handle_at": (304, 265),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
}
"""Numbers on x86-64 and aarch64; None where there is no such call."""

_SOCKETS: dict[str, tuple[int | None, int | None]] = {
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
}
"""Where there is no network at all; writing to a descriptor that was given stays."""

_OF_ITSELF: dict[str, tuple[tuple[int, int], tuple[int, ...]]] = {
    "setpriority": ((141, 140), (0, 1)),
    "sched_setaffinity": ((203, 122), (0,)),
}
"""Who gets less of the processor is in these arguments: all 0 is the one that asks."""

_CLONE, _CLONE3, _FALLOCATE, _KILL_CALL, _TGKILL, _PRLIMIT, _SOCKET, _IOCTL, _FCNTL = (
    (56, 220),
    (435, 435),
    (285, 47),
    (62, 129),
    (234, 131),
    (302, 261),
    (41, 198),
    (16, 29),
    (72, 25),
)

_Code = list[tuple[int, int, int, int]]

_PASS, _REFUSE = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | _EPERM)


def program(machine: str, pid: int, *, connects: bool) -> bytes:
    """Return the filter for a process of this number on this kind of machine; with `connects` it may have internet sockets."""
    column = list(ARCHITECTURES).index(machine)
    forbidden = _PLAIN if connects else _PLAIN | _SOCKETS
    code: _Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, 0x40000000),  # the numbers of x32 on x86-64
        _REFUSE,
    ]
    for numbers in forbidden.values():
        if (number := numbers[column]) is not None:
            code += _when(number, [_REFUSE])
    code += _when(_CLONE3[column], [(_RETURN, 0, 0, _ERRNO | _ENOSYS)])
    code += _when(_FALLOCATE[column], [(_RETURN, 0, 0, _ERRNO | _EOPNOTSUPP)])
    code += _when(_CLONE[column], [_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), _PASS, _REFUSE])
    for numbers in (_KILL_CALL, _TGKILL):
        code += _when(numbers[column], [_argument(0), (_EQUAL, 0, 1, pid), _PASS, _REFUSE])
    for numbers, places in _OF_ITSELF.values():
        zeros = [part for place in places for part in (_argument(place), (_EQUAL, 0, 2 * (places[-1] - place) + 1, 0))]
        code += _when(numbers[column], [*zeros, _PASS, _REFUSE])
    # What limits are may be asked; nothing is set.
    code += _when(_PRLIMIT[column], [_argument(2), (_EQUAL, 0, 3, 0), _argument(2, high=True), (_EQUAL, 0, 1, 0), _PASS, _REFUSE])
    code += _when(_IOCTL[column], [_argument(1), *_none_of(_TERMINAL_INPUT + _SIGNAL_OWNER)])
    code += _when(_FCNTL[column], [_argument(1), *_none_of(_SIGNAL_BY_DESCRIPTOR)])
    code += _when(_SOCKET[column], _INTERNET if connects else [_REFUSE])
    code.append(_PASS)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _when(number: int, then: _Code) -> _Code:
    """Do something that ends the program, if the call has this number."""
    return [(_EQUAL, 0, len(then), number), *then]


def _argument(place: int, *, high: bool = False) -> tuple[int, int, int, int]:
    """Load half of an argument; both architectures have the low half first."""
    return _LOAD, 0, 0, _ARGUMENTS + 8 * place + 4 * high


def _none_of(values: tuple[int, ...]) -> _Code:
    """Refuse these values of what was loaded."""
    return [*((_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)), _PASS, _REFUSE]


_INTERNET: _Code = [
    _argument(0),
    (_EQUAL, 1, 0, _INET),
    (_EQUAL, 0, 5, _INET6),
    _argument(1),
    (_AND, 0, 0, 0xF),
    (_EQUAL, 1, 0, _STREAM),
    (_EQUAL, 0, 1, _DATAGRAM),
    _PASS,
    _REFUSE,
]
"""Allow TCP and UDP of both versions of the internet."""

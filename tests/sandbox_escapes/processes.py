"""Ways to other processes, to the network, and to rights."""

PROGRAMS = {
    "connect_by_tcp": "socket.create_connection(('127.0.0.1', outside['tcp']), 5); tell_escape()",
    "connect_by_tcp_to_itself": """
server = socket.create_server(('127.0.0.1', 0))
socket.create_connection(server.getsockname(), 5); tell_escape()
""",
    "connect_by_ipv6": "socket.create_connection(('::1', outside['tcp']), 5); tell_escape()",
    "send_by_udp": """
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.sendto(b'x', ('127.0.0.1', outside['udp'])); tell_escape()
""",
    "ask_a_name_server": "tell_escape(socket.getaddrinfo('example.org', 80))",
    "open_a_raw_socket": "tell_escape(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "open_a_packet_socket": "tell_escape(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))",
    "open_a_netlink_socket": "tell_escape(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))",
    "open_a_socket_of_the_hypervisor": "tell_escape(socket.socket(40, socket.SOCK_STREAM))",
    "open_a_socket_of_the_kernels_ciphers": "tell_escape(socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET))",
    "connect_to_a_socket_with_a_path": """
one = socket.socket(socket.AF_UNIX); one.connect(outside['stream']); tell_escape()
""",
    "send_to_a_socket_with_a_path": """
one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); one.sendto(b'x', outside['datagram']); tell_escape()
""",
    "send_from_a_pair_to_a_socket_with_a_path": """
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.sendto(b'x', outside['datagram']); tell_escape()
""",
    "connect_a_pair_to_a_socket_with_a_path": """
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
    attempt(lambda: (socket.socketpair(socket.AF_UNIX, kind)[0].connect(outside['stream']), tell_escape()))
    attempt(lambda: (socket.socketpair(socket.AF_UNIX, kind)[0].connect(outside['datagram']), tell_escape()))
""",
    "connect_to_an_abstract_socket": """
one = socket.socket(socket.AF_UNIX); one.connect('\\0' + outside['abstract']); tell_escape()
""",
    "use_rings_of_the_kernel": """
parameters = ctypes.create_string_buffer(120)
tell_escape(call(425, 4, parameters))
""",
    "signal_the_server": "os.kill(victim, 0); tell_escape()",
    "end_the_server": "os.kill(victim, signal.SIGTERM); tell_escape()",
    "end_everything": """
attempt(lambda: os.kill(-1, signal.SIGTERM))
""",
    "end_the_group_of_the_server": "os.killpg(os.getpgid(victim), signal.SIGTERM); tell_escape()",
    "signal_a_thread_of_the_server": "call(number(234, 131), victim, victim, signal.SIGTERM); tell_escape()",
    "signal_by_a_handle": """
handle = os.pidfd_open(victim)
signal.pidfd_send_signal(handle, signal.SIGTERM); tell_escape()
""",
    "queue_a_signal": """
information = ctypes.create_string_buffer(struct.pack('iii', signal.SIGTERM, 0, -1), 128)
call(number(129, 138), victim, signal.SIGTERM, information); tell_escape()
""",
    "have_the_kernel_signal_the_server": """
near, far = os.pipe()
fcntl.fcntl(near, 8, victim); fcntl.fcntl(near, 10, signal.SIGTERM)
fcntl.fcntl(near, fcntl.F_SETFL, os.O_ASYNC)
os.write(far, b'x')
""",
    "end_the_shepherd": "os.kill(os.getppid(), signal.SIGKILL) if os.getppid() > 1 else 0; time.sleep(0.2)",
    "trace_the_server": "tell_escape() if C.ptrace(16, victim, 0, 0) == 0 else None",
    "seize_the_server": "tell_escape() if C.ptrace(0x4206, victim, 0, 0) == 0 else None",
    "read_the_memory_of_the_server": """
lines = read(f'/proc/{victim}/maps').decode().splitlines()
start = int(lines[0].split('-')[0], 16)
target = ctypes.create_string_buffer(16)
class Span(ctypes.Structure): _fields_ = (('base', ctypes.c_void_p), ('length', ctypes.c_size_t))
here, there = Span(ctypes.addressof(target), 16), Span(start, 16)
call(number(310, 270), victim, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
tell_escape(target.raw)
""",
    "read_the_memory_file_of_the_server": "tell_escape(os.open(f'/proc/{victim}/mem', os.O_RDONLY))",
    "read_the_variables_of_the_server": "if b'PLANTED' in read(f'/proc/{victim}/environ'): tell_escape()",
    "read_the_variables_of_the_parent": """
if os.getppid() > 1: tell_escape(read(f'/proc/{os.getppid()}/environ'))
""",
    "read_the_command_of_the_server": "if b'python' in read(f'/proc/{victim}/cmdline'): tell_escape()",
    "find_planted_variables": """
if any('PLANTED' in text for text in (*os.environ, *os.environ.values())): tell_escape()
""",
    "take_a_file_of_the_server": "tell_escape(call(438, os.pidfd_open(victim), 0, 0))",
    "take_a_file_of_the_server_by_its_path": "tell_escape(os.open(f'/proc/{victim}/fd/0', os.O_RDONLY))",
    "compare_with_the_server": "tell_escape(call(number(312, 272), os.getpid(), victim, 0, 0, 0))",
    "limit_the_server": "resource.prlimit(victim, resource.RLIMIT_NOFILE, (10, 10)); tell_escape()",
    "slow_the_server": """
attempt(lambda: (os.setpriority(os.PRIO_PROCESS, victim, 19), tell_escape()))
attempt(lambda: (os.setpriority(os.PRIO_USER, 0, 19), tell_escape('user')) if outside['level'] == 'landlock' else None)
attempt(lambda: (os.setpriority(os.PRIO_PGRP, os.getpgid(victim), 19), tell_escape('group')))
""",
    "move_the_server_to_one_core": "os.sched_setaffinity(victim, {0}); tell_escape()",
    "schedule_the_server": "os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0)); tell_escape()",
    "slow_the_disk_of_the_server": "call(number(251, 30), 1, victim, 3 << 13); tell_escape()",
    "enter_the_namespaces_of_the_server": """
for kind in ('mnt', 'net', 'pid', 'user'):
    attempt(lambda: tell_escape(call(number(308, 268), os.open(f'/proc/{victim}/ns/{kind}', os.O_RDONLY), 0)))
attempt(lambda: tell_escape(call(number(308, 268), os.pidfd_open(victim), 0x20000)))
""",
    "make_a_namespace_of_users": "tell_escape() if C.unshare(0x10000000) == 0 else None",
    "make_a_namespace_by_clone": """
child = C.syscall(number(56, 220), 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0: os._exit(0)
if child > 0: tell_escape()
""",
    "make_a_namespace_by_a_newer_clone": """
arguments = ctypes.create_string_buffer(struct.pack('QQQQQQQQ', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)
child = C.syscall(435, arguments, 64)
if child == 0: os._exit(0)
if child > 0: tell_escape()
""",
    "attach_shared_memory": """
C.shmat.restype = ctypes.c_void_p
address = C.shmat(outside['segment'], None, 0)
if address not in (None, 2 ** 64 - 1): tell_escape(ctypes.string_at(address, 6))
""",
    "make_shared_memory": "tell_escape() if C.shmget(1234567, 4096, 0o1666) >= 0 else None",
    "make_a_message_queue": "tell_escape(call(number(240, 180), b'reasond-test', os.O_CREAT | os.O_RDWR, 0o666, None))",
    "write_the_shared_memory_of_files": """
path = '/dev/shm/' + outside['abstract']
if os.path.exists(path): tell_escape(read(path)); tell_escape(open(path, 'r+b'))
""",
    "read_keys": "tell_escape(call(number(250, 219), 0, -3, 1))",
    "add_a_key": "tell_escape(call(number(248, 217), b'user', b'x', b'y', 1, -3))",
    "load_a_program_into_the_kernel": "tell_escape(call(number(321, 280), 5, ctypes.create_string_buffer(128), 128))",
    "measure_the_kernel": """
attributes = ctypes.create_string_buffer(struct.pack('II', 1, 128), 128)
tell_escape(call(number(298, 241), attributes, 0, -1, -1, 0))
""",
    "handle_faults": "tell_escape(call(number(323, 282), 1))",
    "read_the_log_of_the_kernel": """
tell_escape() if C.klogctl(3, ctypes.create_string_buffer(4096), 4096) > 0 else None
""",
    "become_root": """
for become in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.setgid(0)):
    attempt(lambda: (become(), tell_escape()))
""",
    "keep_the_way_to_rights": "if C.prctl(39, 0, 0, 0, 0) != 1: tell_escape()",
    "have_rights": """
header = ctypes.create_string_buffer(struct.pack('Ii', 0x20080522, 0), 8)
data = ctypes.create_string_buffer(24)
call(number(125, 90), header, data)
if any(data.raw): tell_escape(data.raw)
""",
    "raise_a_limit": """
for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
    attempt(lambda: tell_escape(resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))))
""",
    "take_the_mark_off": """
attempt(lambda: tell_escape(resource.setrlimit(resource.RLIMIT_RTTIME, (1, 1))))
attempt(lambda: tell_escape(call(number(160, 164), 15, struct.pack('QQ', 1, 1))))
attempt(lambda: tell_escape(call(number(302, 261), 0, 15, struct.pack('QQ', 1, 1), None)))
""",
    "call_the_system_as_32_bits": """
if INTEL:
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex('b814000000cd80c3'))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    if function() > 0: tell_escape()
""",
    "call_the_system_as_x32": "if INTEL and C.syscall(ctypes.c_long(0x40000000 | 39)) > 0: tell_escape()",
    "set_the_clock": "time.clock_settime(time.CLOCK_REALTIME, time.time()); tell_escape()",
    "name_the_machine": "socket.sethostname('evil'); tell_escape()",
    "type_into_a_terminal": """
for path in ('/dev/tty', '/dev/console', '/dev/tty1', '/dev/ptmx'):
    attempt(lambda: tell_escape(fcntl.ioctl(os.open(path, os.O_RDWR | os.O_NOCTTY), 0x5412, b'x')))
""",
    "live_on": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for one in set(range(1, 65)) - {9, 19}:
            attempt(lambda: signal.signal(one, signal.SIG_IGN))
        for handle in (0, 1, 2): os.close(handle)
        while True: time.sleep(1)
""",
}

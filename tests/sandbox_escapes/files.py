"""Ways to files outside, and to the files of the base tree."""

PROGRAMS = {
    "read_a_file_by_its_path": "if read(secret) == b'canary': tell_escape()",
    "read_by_the_root_of_this_process": "if read('/proc/self/root' + secret) == b'canary': tell_escape()",
    "read_by_the_root_of_the_server": "if read(f'/proc/{victim}/root{secret}') == b'canary': tell_escape()",
    "read_by_the_folder_of_the_server": "if read(f'/proc/{victim}/cwd/secret') == b'canary': tell_escape()",
    "read_through_a_link": "os.symlink(secret, 'link')\nif read('link') == b'canary': tell_escape()",
    "read_through_a_hard_link": "os.link(secret, 'link')\nif read('link') == b'canary': tell_escape()",
    "read_upwards": "for _ in range(20): os.chdir('..')\nif read('.' + secret) == b'canary': tell_escape()",
    "read_upwards_by_handles": """
place = os.open('.', os.O_RDONLY)
for _ in range(20):
    place = os.open('..', os.O_RDONLY, dir_fd=place)
tell_escape(os.listdir(place)) if os.path.exists(f'/proc/self/fd/{place}{secret}') else None
if os.read(os.open(secret[1:], os.O_RDONLY, dir_fd=place), 10) == b'canary': tell_escape()
""",
    "read_by_a_path_handle": """
place = os.open(os.path.dirname(secret), os.O_PATH)
if os.read(os.open('secret', os.O_RDONLY, dir_fd=place), 10) == b'canary': tell_escape()
""",
    "read_by_a_file_handle_of_the_kernel": """
buffer = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128), 136)
mount = ctypes.c_int()
call(number(303, 264), -100, secret.encode(), buffer, ctypes.byref(mount), 0)
place = os.open('.', os.O_RDONLY)
if os.read(call(number(304, 265), place, buffer, os.O_RDONLY), 10) == b'canary': tell_escape()
""",
    "read_by_inherited_descriptors": """
for place in range(3, 4096):
    try: status = os.fstat(place)
    except OSError: continue
    tell_escape((place, os.readlink(f'/proc/self/fd/{place}')))
""",
    "read_the_lifeline": "if os.fstat(0).st_rdev != os.stat('/dev/null').st_rdev: tell_escape()",
    "read_shadow": "tell_escape(read('/etc/shadow')[:10])",
    "read_the_real_accounts": "if b'root:' in read('/etc/passwd'): tell_escape()",
    "list_the_folder_of_the_server": "if 'secret' in os.listdir(os.path.dirname(secret)): tell_escape()",
    "list_other_jobs": "tell_escape(os.listdir(outside['jobs']))",
    "read_another_workspace": "tell_escape(read(outside['other'] + '/kept.py'))",
    "write_another_workspace": "tell_escape(open(outside['other'] + '/made', 'w'))",
    "write_the_base_by_its_path": "tell_escape(open(outside['base'] + '/kept.py', 'r+b'))",
    "write_the_base_through_the_link": "tell_escape(open('kept.py', 'r+b'))",
    "append_to_the_base": "tell_escape(os.open('kept.py', os.O_WRONLY | os.O_APPEND))",
    "truncate_the_base": "os.truncate('kept.py', 0); tell_escape()",
    "make_the_base_writable": "os.chmod('kept.py', 0o666)\ntell_escape(open('kept.py', 'r+b'))",
    "make_the_base_writable_by_a_handle": """
handle = os.open('kept.py', os.O_RDONLY)
attempt(lambda: os.fchmod(handle, 0o666), lambda: os.chmod(f'/proc/self/fd/{handle}', 0o666))
tell_escape(open('kept.py', 'r+b'))
""",
    "make_the_base_writable_by_a_newer_call": """
attempt(lambda: call(452, -100, b'kept.py', 0o666, 0))
if os.stat('kept.py').st_mode & 0o222: tell_escape()
""",
    "make_the_base_writable_by_an_access_list": """
attempt(lambda: os.setxattr('kept.py', 'system.posix_acl_access', struct.pack('<I', 2) + b''.join(
    struct.pack('<HHI', tag, 6, 0xffffffff) for tag in (1, 4, 0x20))))
if os.stat('kept.py').st_mode & 0o222: tell_escape()
""",
    "change_the_times_of_the_base": """
attempt(lambda: os.utime('kept.py', (5, 5)))
if os.stat('kept.py').st_mtime == 5: tell_escape()
""",
    "attach_to_the_base": """
attempt(lambda: os.setxattr('kept.py', 'user.x', b'y'))
tell_escape(os.getxattr('kept.py', 'user.x'))
""",
    "map_the_base_for_writing": """
handle = os.open('kept.py', os.O_RDONLY)
mmap.mmap(handle, 4, mmap.MAP_SHARED, mmap.PROT_WRITE)[:4] = b'evil'
tell_escape()
""",
    "allocate_in_the_base": """
handle = os.open('kept.py', os.O_RDONLY)
os.posix_fallocate(handle, 0, 100_000); tell_escape()
""",
    "make_a_file_outside": "open(os.path.dirname(secret) + '/made', 'w')",
    "make_a_file_in_the_open_folder": "open(outside['open'] + '/made', 'w'); tell_escape()",
    "make_a_link_in_the_open_folder": "os.symlink('x', outside['open'] + '/made_link'); tell_escape()",
    "make_a_pipe_in_the_open_folder": "os.mkfifo(outside['open'] + '/made_pipe'); tell_escape()",
    "make_a_folder_in_the_open_folder": "os.mkdir(outside['open'] + '/made_folder'); tell_escape()",
    "remove_from_the_open_folder": "os.unlink(outside['open'] + '/lost'); tell_escape()",
    "move_out_of_the_open_folder": "os.rename(outside['open'] + '/moved', 'moved'); tell_escape()",
    "move_into_the_open_folder": "os.rename('program.py', outside['open'] + '/in'); tell_escape()",
    "change_the_mode_outside": """
os.chmod(outside['open'] + '/writable', 0o600)
if os.stat(outside['open'] + '/writable').st_mode & 0o777 == 0o600: tell_escape()
""",
    "change_the_times_outside": """
os.utime(outside['open'] + '/writable', (5, 5))
if os.stat(outside['open'] + '/writable').st_mtime == 5: tell_escape()
""",
    "truncate_outside": "os.truncate(outside['open'] + '/writable', 0); tell_escape()",
    "write_the_system": "open('/usr/made', 'w'); tell_escape()",
    "write_beside_the_workspace": "open('../made', 'w'); tell_escape()",
    "write_the_root": "open('/made', 'w'); tell_escape()",
    "write_the_devices": "open('/dev/made', 'w'); tell_escape()",
    "write_the_environment": "open(outside['environment'] + '/made', 'w'); tell_escape()",
    "make_a_device": "os.mknod('device', 0o660 | 0x6000, os.makedev(253, 0)); tell_escape()",
    "read_the_memory_of_the_kernel": """
for path in ('/dev/mem', '/dev/kmsg', '/proc/kcore', '/dev/vda', '/dev/sda'):
    attempt(lambda: tell_escape((path, os.read(os.open(path, os.O_RDONLY), 1))))
""",
    "write_settings_of_the_kernel": """
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/overcommit_memory', '/proc/sysrq-trigger'):
    attempt(lambda: tell_escape((path, os.open(path, os.O_WRONLY))))
""",
    "make_a_control_group": """
for path in ('/sys/fs/cgroup', '/sys/fs/cgroup/memory', '/sys/fs/cgroup/unified'):
    attempt(lambda: tell_escape(os.mkdir(path + '/reasond-test-made')))
""",
    "watch_a_folder_outside": """
handle = C.inotify_init1(0)
if handle >= 0 and C.inotify_add_watch(handle, outside['open'].encode(), 0xfff) >= 0: tell_escape()
""",
    "leave_by_chroot": "os.mkdir('x'); os.chroot('x'); os.chdir('../../../..'); tell_escape()",
    "mount": """
attempt(lambda: C.unshare(0x10020000))
if C.mount(b'none', b'.', b'tmpfs', 0, None) == 0: tell_escape()
""",
    "bind_the_outside": "if C.mount(os.path.dirname(secret).encode(), b'.', None, 4096, None) == 0: tell_escape()",
    "make_the_system_writable": "if C.mount(b'none', b'/usr', None, 4096 | 32, None) == 0: tell_escape()",
    "unmount": "tell_escape() if C.umount2(b'/usr', 2) == 0 or C.umount2(os.getcwd().encode(), 2) == 0 else None",
    "open_a_tree_of_mounts": "tell_escape(call(428, -100, b'/', 1))",
    "open_a_new_file_system": "tell_escape(call(430, b'tmpfs', 0))",
}

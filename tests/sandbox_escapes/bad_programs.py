"""Programs that hang, multiply and flood, with the limits that may end them."""

IGNORE_SIGNALS = (
    "import os, signal, time\n"
    "for one in set(range(1, 65)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, 32, 33}:\n"
    "    signal.signal(one, signal.SIG_IGN)\n"
)
# Each program with the limits that may end it; the last word is what it does besides.
BAD_PROGRAMS = {
    "hang": (IGNORE_SIGNALS + "while True: time.sleep(1)", {"wall_s"}),
    "spin": (IGNORE_SIGNALS + "while True: pass", {"cpu_s", "wall_s"}),
    "double_fork": (
        IGNORE_SIGNALS + "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            while True: time.sleep(1)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "while True: time.sleep(1)",
        {"wall_s"},
    ),
    "fork_bomb": (
        IGNORE_SIGNALS + "while True:\n    try: os.fork()\n    except OSError: pass",
        {"processes", "cpu_s", "wall_s"},
    ),
    "thread_bomb": (
        (
            "import threading, time\nwhile True:\n"
            "    try: threading.Thread(target=time.sleep, args=(600,)).start()\n    except RuntimeError: pass"
        ),
        {"processes", "cpu_s", "wall_s"},
    ),
    "fork_and_leave": (
        IGNORE_SIGNALS + "while True:\n"
        "    try:\n"
        "        if os.fork(): os._exit(0)\n"
        "    except OSError: pass\n"
        "    os.setsid()",
        {"", "processes", "cpu_s", "wall_s"},
    ),
    "flood_of_output": ("while True: print('x' * 65536)", {"cpu_s", "wall_s"}),
    "flood_of_disk": (
        "number = 0\nwhile True:\n    number += 1\n    open(str(number), 'wb').write(bytes(1 << 20))",
        {"disk_bytes"},
    ),
    "flood_of_one_file": ("file = open('one', 'wb')\nwhile True: file.write(bytes(1 << 20))", {"", "disk_bytes"}),
    "flood_of_small_files": (
        "number = 0\nwhile True:\n    number += 1\n    open(str(number), 'w').close()",
        {"disk_bytes"},
    ),
    "flood_of_folders": ("import os\nwhile True: os.mkdir('x'); os.chdir('x')", {"disk_bytes"}),
    "flood_of_temporary_files": (
        (
            "import os, tempfile\nkept = []\nwhile True:\n    kept.append(tempfile.TemporaryFile())\n"
            "    kept[-1].write(bytes(1 << 20))"
        ),
        {"disk_bytes"},
    ),
    "flood_of_memory": ("kept = []\nwhile True: kept.append(bytearray(b'x' * (1 << 20)))", {"memory_bytes"}),
    "flood_of_memory_files": (
        (
            "import os\nkept = []\nwhile True:\n    kept.append(os.memfd_create('x'))\n"
            "    os.write(kept[-1], bytes(1 << 20))"
        ),
        {"disk_bytes", "memory_bytes"},
    ),
}

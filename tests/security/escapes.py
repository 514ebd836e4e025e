"""The escape list: programs of a policy that wants out, or wants more than it has, and what must come of each.

``held``: the program itself prints that once all its tries were refused. The others end by a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import ctypes, errno, os, signal, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*numbers):
    ctypes.set_errno(0)
    done = libc.syscall(*[ctypes.c_long(n) if isinstance(n, int) else n for n in numbers])
    return done if done >= 0 else -ctypes.get_errno()
def refused(act, *errors):
    try:
        got = act()
    except errors or OSError as error:
        return
    sys.exit(f"not refused: {got!r}"[:300])
def forbidden(number, *arguments, allowed=(errno.EPERM, errno.ENOSYS, errno.EACCES)):
    got = call(number, *arguments)
    if -got not in allowed:
        sys.exit(f"call {number} gave {got}")
"""
TAIL = "\nprint('held')\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """``cause`` and ``says``: how the command ends, and what its output holds."""

    wish: str
    program: str
    cause: str = "exit"
    says: str = "held"

    @property
    def code(self) -> str:
        """The whole program."""
        return HEAD + self.program + TAIL


X86 = "if os.uname().machine != 'x86_64': print('held'); sys.exit()\n"

ESCAPES = (
    Escape(
        wish="more processes than there may be",
        program="""
number = 0
try:
    for number in range(2000):
        if os.fork() == 0:
            time.sleep(60)
except BlockingIOError:
    pass
assert number < 60, number""",
    ),
    Escape(
        wish="a fork bomb that never ends",
        program="while True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        cause="time",
        says="",
    ),
    Escape(
        wish="heap",
        program="held = [bytearray(b'x' * (1 << 20)) for _ in range(100_000)]",
        cause="any",
        says="",
    ),
    Escape(
        wish="heap of many processes",
        program="""
for _ in range(30):
    if os.fork() == 0:
        held = b'x' * (100 << 20)
        time.sleep(60)
time.sleep(60)""",
        cause="memory",
        says="",
    ),
    Escape(
        wish="shared memory that no name stands for",
        program="""
import mmap
for _ in range(30):
    if os.fork() == 0:
        held = mmap.mmap(-1, 100 << 20)
        for place in range(0, 100 << 20, 4096):
            held[place] = 1
        time.sleep(60)
time.sleep(60)""",
        cause="memory",
        says="",
    ),
    Escape(
        wish="memory of files without a name, and of System V",
        program=f"""
refused(lambda: os.memfd_create('x'))
{X86}forbidden(29, 0, 1 << 20, 0o1600)""",
    ),
    Escape(
        wish="a full disk",
        program="""
import shutil
for folder in ('/box', '/tmp', '/dev/shm'):
    size = 0
    try:
        with open(folder + '/big', 'wb') as file:
            while True:
                size += file.write(b'x' * (1 << 20))
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.EFBIG), error
    assert size <= 65 << 20, (folder, size)
    os.unlink(folder + '/big')""",
    ),
    Escape(
        wish="a file that is larger than the disk, by a hole",
        program="""
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
descriptor = os.open('/box/a', os.O_RDWR | os.O_CREAT)
refused(lambda: os.ftruncate(descriptor, 1 << 40))""",
    ),
    Escape(
        wish="all inodes",
        program="for number in range(1_000_000): open(f'/box/{number}', 'w').close()",
        cause="files",
        says="",
    ),
    Escape(
        wish="files of the host, by absolute paths, .. and links",
        program="""
for path in ('/etc/passwd', '/root', '/home', '/var', '/work', '/../../etc/passwd', '/sys', '/boot', '/opt'):
    assert not os.path.exists(path), path
os.symlink('/../../../etc/passwd', '/box/link')
refused(lambda: open('/box/link'))
refused(lambda: os.link('/run/inside.py', '/box/hard'))""",
    ),
    Escape(
        wish="to write where it only reads",
        program="""
for folder in ('/', '/usr', '/usr/bin', '/run', '/dev', '/proc', '/proc/self'):
    refused(lambda: open(folder + '/mine', 'w'))
refused(lambda: open('/run/inside.py', 'a'))
refused(lambda: os.chmod('/usr/bin/python3', 0o777))""",
    ),
    Escape(
        wish="the metadata service, the API server and names",
        program="""
for address in ('169.254.169.254', '100.100.100.200', '10.96.0.1', '8.8.8.8', '192.168.0.1'):
    def dial():
        with socket.socket() as one:
            one.settimeout(2)
            one.connect((address, 80))
    refused(dial)
def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b'x', ('169.254.169.254', 53))
refused(send)
refused(lambda: socket.getaddrinfo('metadata.google.internal', 80), socket.gaierror)""",
    ),
    Escape(
        wish="only the loopback device",
        program="assert sorted(line.split(':')[0].strip() for line in open('/proc/net/dev').read().splitlines()[2:]) == ['lo']",
    ),
    Escape(
        wish="processes of others",
        program="""
seen = [name for name in os.listdir('/proc') if name.isdigit()]
assert set(seen) == {'1', str(os.getpid())}, seen""",
    ),
    Escape(
        wish="to kill, stop or look into what watches it",
        program=f"""
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
    os.kill(1, number)
for name in ('environ', 'mem', 'maps', 'fd/0', 'fd/1', 'root', 'cwd'):
    refused(lambda: os.open('/proc/1/' + name, os.O_RDWR))
refused(lambda: os.listdir('/proc/1/fd'))
{X86}forbidden(101, 16, 1, 0, 0)
forbidden(310, 1, 0, 0, 0, 0, 0)""",
    ),
    Escape(
        wish="ten gigabytes of output",
        program="""
data = b'x' * (1 << 20)
while True:
    os.write(1, data)
    os.write(2, data)""",
        cause="time",
        says="",
    ),
    Escape(
        wish="a process that outlives its command",
        program="""
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        os._exit(0)
time.sleep(0.1)""",
    ),
    Escape(
        wish="namespaces and mounts of its own",
        program=f"""
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000, 0x4000000, 0x2000000, 0x80):
    if libc.unshare(flag) == 0: sys.exit(f'unshare {{flag:x}}')
if libc.mount(b'none', b'/box', b'tmpfs', 0, None) == 0: sys.exit('mount')
if libc.umount2(b'/proc', 2) == 0: sys.exit('umount')
if libc.chroot(b'/box') == 0: sys.exit('chroot')
{X86}forbidden(56, 0x10000000 | 17, 0, 0, 0, 0)
forbidden(155, b'/box', b'/box')
forbidden(435, b'\\0' * 88, 88)
forbidden(428, -100, b'/', 1)
forbidden(430, b'tmpfs', 0)
forbidden(308, 0, 0)""",
    ),
    Escape(
        wish="sockets of the kernel, of the host of a virtual machine, and raw packets",
        program="""
for family in (16, 17, 38, 40, 44, 31, 29):
    refused(lambda: socket.socket(family, socket.SOCK_DGRAM))
    refused(lambda: socket.socket(family, socket.SOCK_RAW))
refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW))
refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC))""",
    ),
    Escape(
        wish="rings, faults, programs, keys and counters of the kernel",
        program=f"""
{X86}for number in (425, 426, 427, 323, 321, 298, 250, 248, 249, 175, 313, 246, 320, 300, 304, 438, 134, 179):
    forbidden(number, 0, 0, 0, 0, 0)""",
    ),
    Escape(
        wish="calls of other machines, which no filter of ours reads",
        program=f"""
{X86}child = os.fork()
if child == 0:
    call(0x40000000 | 39)
    os._exit(0)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSYS""",
    ),
    Escape(
        wish="settings of the kernel",
        program="""
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/sys/net/ipv4/ip_forward',
             '/proc/sysrq-trigger', '/proc/self/oom_score_adj', '/proc/sys/kernel/hostname', '/proc/kcore'):
    if os.path.exists(path):
        refused(lambda: open(path, 'r+b', buffering=0).write(b'1'))
refused(lambda: socket.sethostname('mine'))""",
    ),
    Escape(
        wish="secrets of whoever started it, in variables, descriptors and mounts",
        program="""
assert not [name for name in os.environ if 'SECRET' in name], os.environ
for path in ('/proc/1/environ', '/proc/self/environ'):
    try:
        assert b'SECRET' not in open(path, 'rb').read()
    except PermissionError:
        pass
assert sorted(os.listdir('/proc/self/fd'), key=int) == ['0', '1', '2', '3'], os.listdir('/proc/self/fd')
told = open('/proc/self/mountinfo').read()
assert '/work' not in told and '/root' not in told and 'overlay' not in told.replace('- overlay', ''), told
assert not os.path.exists('/var/run/secrets')""",
    ),
    Escape(
        wish="to type into the terminal of whoever started it",
        program="""
import fcntl
for number in (0x5412, 0x541c):
    try:
        fcntl.ioctl(0, number, b'x')
        sys.exit('typed')
    except OSError as error:
        assert error.errno == errno.EPERM, error
refused(lambda: open('/dev/tty'))""",
    ),
    Escape(
        wish="a core dump that a program of the host reads",
        program="""
import resource
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
refused(lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)), ValueError, OSError)""",
    ),
    Escape(
        wish="to stay, whatever signal comes",
        program="""
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
while True:
    time.sleep(1)""",
        cause="time",
        says="",
    ),
    Escape(
        wish="to stop itself and be waited for",
        program="os.kill(os.getpid(), signal.SIGSTOP)",
        cause="time",
        says="",
    ),
    Escape(wish="every processor, for ever", program="while True: pass", cause="time", says=""),
    Escape(
        wish="the rights of a file's owner",
        program="""
shutil = __import__('shutil')
shutil.copy('/usr/bin/env', '/box/env')
os.chmod('/box/env', 0o6755)
status = open('/proc/self/status').read()
assert 'NoNewPrivs:\\t1' in status
assert all(line.split()[1].strip('0') == '' for line in status.splitlines() if line.startswith('Cap')), status
refused(lambda: os.setuid(0))
refused(lambda: os.setgid(0))
refused(lambda: os.chown('/box/env', 0, 0))""",
    ),
    Escape(
        wish="sockets of the host that have no place in the file system",
        program="""
names = [line.split()[-1] for line in open('/proc/net/unix').read().splitlines()[1:] if '@' in line]
assert names == [], names
def dial():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(HOSTS_NAME)
refused(dial)""",
    ),
    Escape(
        wish="all descriptors",
        program="""
held = []
try:
    while True:
        held.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.EMFILE
assert len(held) < 130""",
    ),
    Escape(
        wish="to forge its own result",
        program="""
for descriptor in (1, 2):
    os.write(descriptor, b'\\0\\0\\0\\x02{}')
os.write(1, b'held')
os._exit(0)""",
    ),
    Escape(
        wish="a stack without end",
        program="""
sys.setrecursionlimit(10**9)
def deeper(): return deeper() + 1
deeper()""",
        cause="any",
        says="",
    ),
    Escape(
        wish="a number that takes for ever to write",
        program="""
try:
    str(10**10**7)
except ValueError:
    pass""",
        cause="any",
        says="",
    ),
    Escape(
        wish="another time",
        program=f"""
refused(lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
{X86}forbidden(164, 0, 0)
forbidden(159, b'\\1' * 208)""",
    ),
)

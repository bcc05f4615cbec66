"Code of a stranger: every way out that we know is closed, each ends in one clear line, and nothing is left over."
import os, shutil, signal, subprocess, sys, tempfile, textwrap, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import pytest
from shopping_grpo import confine, sandbox
from shopping_grpo.core import EnvError
from shopping_grpo.sandbox import python_execute

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='the sandbox needs Linux')
needs_landlock = pytest.mark.skipif(not confine.files_can_be_kept(), reason='the kernel has no Landlock 3; no file can be opened at all then')
HERE = Path(confine.__file__).parent


def still_there():
    "Processes that run the confinement script."
    found = []
    for p in Path('/proc').glob('[0-9]*'):
        try: line = (p/'cmdline').read_bytes().split(b'\0')
        except OSError: continue
        if os.fsencode(confine.__file__) in line: found.append(int(p.name))
    return found


def run(code, **bounds): return python_execute(textwrap.dedent(code), **bounds)


@pytest.fixture(autouse=True)
def nothing_left_over(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    before = set(still_there())
    yield
    assert set(still_there()) <= before and not list(tmp_path.glob('run-*'))


ATTACKS = [
    ('infinite loop', 'while True: pass', 'ran longer than 0.5 s'),
    ('sleep', 'import time\ntime.sleep(100)', 'ran longer than 0.5 s'),
    ('ignored signals', 'import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass', 'ran longer than 0.5 s'),
    ('fork bomb', 'import os\nwhile True: os.fork()', 'Operation not permitted'),
    ('stubborn fork bomb', 'import os\nwhile True:\n    try: os.fork()\n    except OSError: pass', 'ran longer than 0.5 s'),
    ('posix_spawn', 'import os\nos.posix_spawn("/bin/sh", ["sh"], {})', 'Operation not permitted'),
    ('subprocess', 'import subprocess\nsubprocess.run("id", shell=True)', 'Operation not permitted'),
    ('exec', 'import os\nos.execv("/bin/sh", ["sh"])', 'Error'),
    ('multiprocessing', 'import multiprocessing\nmultiprocessing.Process(target=print).start()', 'Error'),
    ('thread', 'import threading\nthreading.Thread(target=print).start()', "can't start new thread"),
    ('10 GB', 'x = bytearray(10 * 2**30)', 'MemoryError'),
    ('10 GB in pieces', 'x = []\nwhile True: x.append(bytearray(2**20))', 'MemoryError'),
    ('memory that is caught', 'x = []\nwhile True:\n    try: x.append(bytearray(2**16))\n    except MemoryError: pass', 'ran longer than 0.5 s'),
    ('TCP', 'import socket\ns = socket.socket()\ns.connect(("127.0.0.1", 1))', 'Operation not permitted'),
    ('UDP', 'import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)', 'Operation not permitted'),
    ('unix socket', 'import socket\nsocket.socket(socket.AF_UNIX)', 'Operation not permitted'),
    ('socketpair', 'import socket\nsocket.socketpair()', 'Operation not permitted'),
    ('urllib', 'import urllib.request\nurllib.request.urlopen("http://localhost")', 'Error'),
    ('passwd', 'print(open("/etc/passwd").read())', 'PermissionError'),
    ('list of the root', 'import os\nprint(os.listdir("/"))', 'PermissionError'),
    ('way up', 'import os\nprint(os.listdir(".."))', 'PermissionError'),
    ('environment of the parent', 'import os\nprint(open(f"/proc/{os.getppid()}/environ").read())', 'PermissionError'),
    ('own memory through proc', 'print(open("/proc/self/maps").read())', 'PermissionError'),
    ('chroot', 'import os\nos.chroot(".")', 'Operation not permitted'),
    ('symlink', 'import os\nos.symlink("/etc/passwd", "p")\nprint(open("p").read())', 'Operation not permitted'),
    ('hard link', 'import os\nos.link("/etc/passwd", "p")', 'Operation not permitted'),
    ('write outside', 'open("/tmp/escaped", "w").write("x")', 'PermissionError'),
    ('rename outside', 'import os\nopen("a", "w")\nos.rename("a", "/tmp/escaped")', 'PermissionError'),
    ('remove outside', 'import os\nos.remove("/etc/hostname")', 'PermissionError'),
    ('rights', 'import os\nos.chmod("/tmp", 0)', 'Operation not permitted'),
    ('owner', 'import os\nos.chown("/tmp", 1, 1)', 'Operation not permitted'),
    ('times', 'import os\nos.utime("/tmp", (0, 0))', 'Operation not permitted'),
    ('folder', 'import os\nos.mkdir("d")', 'Operation not permitted'),
    ('fifo', 'import os\nos.mkfifo("f")', 'Operation not permitted'),
    ('big file', 'open("big", "wb").write(bytes(2**21))', 'File too large'),
    ('sparse file', 'f = open("big", "wb")\nf.seek(2**30)\nf.write(b"x")\nf.flush()', 'File too large'),
    ('many files', 'for n in range(10**6):\n    with open(str(n), "w") as f: f.write("x")', 'more than 100 files'),
    ('full folder', 'import time\nfor n in range(9):\n    with open(str(n), "wb") as f: f.write(bytes(2**20))\ntime.sleep(99)', 'more than 4 MB'),
    ('output flood', 'while True: print("x" * 1000)', 'more than 10000 characters'),
    ('error flood', 'import sys\nwhile True: print("x" * 1000, file=sys.stderr)', 'more than 10000 characters'),
    ('kill the parent', 'import os, signal\nos.kill(os.getppid(), signal.SIGKILL)', 'Operation not permitted'),
    ('kill the group', 'import os, signal\nos.killpg(0, signal.SIGKILL)', 'Operation not permitted'),
    ('kill all', 'import os, signal\nos.kill(-1, signal.SIGKILL)', 'Operation not permitted'),
    ('signal by a pipe', 'import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())', 'Operation not permitted'),
    ('raised limit', 'import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))', 'Error'),
    ('higher priority', 'import os\nos.nice(-5)', 'Operation not permitted'),
    ('crash', 'import ctypes\nctypes.string_at(0)', 'SIGSEGV'),
    ('abort', 'import os\nos.abort()', 'crashed with'),
    ('recursion', 'f = lambda: f()\nf()', 'RecursionError'),
    ('false success of the sandbox', 'import os\nos._exit(2)', 'left with status 2'),
    ('exception in a hook', 'import sys\nsys.stdout = None\nraise ValueError("x")', 'Error'),
    ('a long message', 'raise ValueError("x\\n" * 10000)', 'ValueError'),
]


@needs_landlock
@pytest.mark.parametrize('code, message', [a[1:] for a in ATTACKS], ids=[a[0] for a in ATTACKS])
def test_contained(code, message):
    r = python_execute(code, seconds=0.5 if 'ran longer' in message else 20)
    assert not r.ok and message in r.error and '\n' not in r.error and len(r.error) <= 500, r
    assert len(r.output) <= 10_000 and not os.path.exists('/tmp/escaped')


RAW = '''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    out = libc.syscall(*args)
    return out if out >= 0 else -ctypes.get_errno()
'''


@needs_landlock
@pytest.mark.skipif(confine.platform.machine() != 'x86_64', reason='numbers of x86-64')
def test_system_calls_by_hand():
    "ctypes is loaded in the process: whoever calls the kernel with it meets the filter."
    calls = dict(kill='62, os.getppid(), 9', tkill='200, os.getppid(), 9', tgkill='234, os.getppid(), os.getppid(), 9', pidfd_open='434, os.getppid(), 0', process_vm_readv='310, os.getppid(), 0, 0, 0, 0, 0', ptrace='101, 16, os.getppid(), 0, 0',
        clone='56, 17, 0, 0, 0, 0', vfork='58', socket='41, 2, 1, 0', execve='59, b"/bin/sh", 0, 0', memfd_create='319, b"x", 0', mount='165, 0, 0, 0, 0, 0', unshare='272, 0x10000000', setns='308, 0, 0', setuid='105, 0', prctl='157, 4, 1, 0, 0, 0',
        seccomp='317, 1, 0, 0', keyctl='250, 0, 0, 0', bpf='321, 0, 0, 0', io_uring='425, 1, 0', open_by_handle='304, 0, 0, 0', perf='298, 0, 0, 0, 0, 0', userfaultfd='323, 0', shmget='29, 1, 1, 0', setrlimit='160, 9, 0', prlimit='302, 0, 9, b"x" * 16, 0',
        fcntl_owner='72, 1, 8, os.getppid()', ioctl='16, 0, 0x5412, b"x"', x32_kill='0x40000000 + 62, os.getppid(), 9')
    r = run(RAW + ''.join(f'print({name!r}, call({args}))\n' for name, args in calls.items()) + 'print("clone3", call(435, 0, 0))')
    assert r.output.splitlines() == [f'{name} -1' for name in calls] + ['clone3 -38'], r # 38: there is no such call


def test_the_innocent_are_not_bothered():
    code = '''
        import decimal, fractions, statistics, json, math, itertools, datetime, re, collections, random, string
        print(decimal.Decimal('1.1') * 3, fractions.Fraction(1, 3), statistics.mean([1, 2, 4]), json.dumps({'a': [1]}), math.comb(5, 2))
        print(datetime.datetime.strptime('2026-01-02', '%Y-%m-%d').date(), max(itertools.combinations([3, 1, 2], 2), key=sum), 'é')
        if __name__ == '__main__': print(sum(range(10**6)))'''
    r = run(code)
    assert r.ok and r.output.splitlines() == ['3.3 1/3 ' + str(7/3) + ' {"a": [1]} 10', '2026-01-02 (3, 2) é', '499999500000'], r
    r = run('print("before")\nprint(undefined)')
    assert (r.output, r.error) == ('before\n', "NameError: name 'undefined' is not defined (line 2)")


@needs_landlock
def test_other_modules_of_the_library_can_be_read_and_packages_cannot():
    assert run('import colorsys, ast\nprint(colorsys.rgb_to_hsv(1, 0, 0))').ok
    assert 'only the standard library' in run('import pytest').error


def test_same_code_same_output():
    code = 'import random\nprint(random.random(), {"a", "b", "c", "d"}, hash("x"), sorted({"q": 1}))'
    assert run(code).output == run(code).output != ''


def test_nothing_of_the_parent_is_inherited(tmp_path, monkeypatch):
    monkeypatch.setenv('SECRET_KEY', 'x')
    with open(tmp_path/'secret', 'w'):
        r = run('import os\nfds = []\nfor n in range(3, 32):\n    try: os.fstat(n); fds.append(n)\n    except OSError: pass\nprint(fds, sorted(os.environ))')
    assert r.output == "[] ['LC_ALL', 'PYTHONHASHSEED', 'PYTHONIOENCODING']\n"


def test_many_at_once():
    with ThreadPoolExecutor(4) as pool: out = list(pool.map(lambda n: python_execute(f'print({n} * 7)'), range(12)))
    assert [r.output for r in out] == [f'{n * 7}\n' for n in range(12)]


@pytest.mark.parametrize('abi', [0, 2])
def test_without_landlock_no_file_can_be_opened(abi, monkeypatch):
    "An older kernel: the filter alone keeps all files shut."
    real = sandbox.subprocess.Popen
    shim = 'import sys; sys.path.insert(0, sys.argv[1]); import confine; confine.landlock_abi = lambda: ABI; confine.main(*sys.argv[2:])'.replace('ABI', str(abi))
    monkeypatch.setattr(sandbox.subprocess, 'Popen', lambda args, **kw: real([*args[:6], '-c', shim, str(HERE), *args[7:]], **kw))
    assert run('import decimal\nprint(decimal.Decimal("0.1") * 3)').output == '0.3\n'
    for code in ('open("a", "w")', 'print(open("/etc/passwd").read())', 'import os\nos.listdir("/")', 'import os\nos.fork()'): assert 'Operation not permitted' in run(code).error


def test_a_missing_layer_is_an_error_of_the_environment(monkeypatch):
    real = sandbox.subprocess.Popen
    shim = 'import sys; sys.path.insert(0, sys.argv[1]); import confine; confine.SECCOMP = 9999; confine.main(*sys.argv[2:])'
    monkeypatch.setattr(sandbox.subprocess, 'Popen', lambda args, **kw: real([*args[:6], '-c', shim, str(HERE), *args[7:]], **kw))
    with pytest.raises(EnvError, match='^python_execute: the code was not run, because the seccomp filter cannot be put on: [^\n]*$'): run('print(1)')
    monkeypatch.setattr(sandbox.subprocess, 'Popen', lambda args, **kw: real([sys.executable, '-c', 'raise SystemExit("no room")'], **kw))
    with pytest.raises(EnvError, match='its process did not start: no room'): run('print(1)')
    monkeypatch.setattr(sandbox.sys, 'platform', 'plan9')
    with pytest.raises(EnvError, match='needs Linux'): run('print(1)')


def test_needs_no_powers():
    "A parent that has given up every capability can still confine."
    code = 'from shopping_grpo import confine, sandbox; confine.drop_powers(); print([sandbox.python_execute(c).output or "refused" for c in ("print(6 * 7)", "import os; os.fork()", "open(chr(47) + chr(101))")])'
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout == "['42\\n', 'refused', 'refused']\n"


@needs_landlock
@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists('/usr/bin/python3'), reason='only root can become somebody else, and nobody needs a Python to read')
def test_confines_for_nobody():
    "The script by itself as user 65534, with the system's Python."
    where = Path(tempfile.mkdtemp(prefix='nobody-', dir='/tmp'))
    try:
        (where/'confine.py').write_bytes(Path(confine.__file__).read_bytes())
        for p in (where, where/'confine.py'): os.chown(p, 65534, 65534)
        for code, out, err in (('print(6 * 7)', '42\n', ''), ('open("/etc/passwd")', '', 'Permission denied'), ('import os\nos.fork()', '', 'Operation not permitted'), ('open("a", "w").write("x")\nprint(open("a").read())', 'x\n', '')):
            pipe = os.pipe()
            r = subprocess.run(['/usr/bin/python3', '-S', '-s', where/'confine.py', where, '5', str(1 << 28), '1000', str(pipe[1])], input=code, pass_fds=pipe, capture_output=True, text=True, user=65534, group=65534, extra_groups=[], cwd=where)
            assert r.stdout == out and err in r.stderr and os.read(pipe[0], 9) == b'on', r
            for fd in pipe: os.close(fd)
    finally: shutil.rmtree(where)


def test_a_killed_parent_takes_its_child_along(tmp_path):
    (tmp_path/'left').mkdir() # a killed parent cannot tidy up
    before = set(still_there())
    parent = subprocess.Popen([sys.executable, '-c', 'from shopping_grpo.sandbox import python_execute; python_execute("while True: pass", seconds=60)'], env=os.environ | {'TMPDIR': str(tmp_path/'left')})
    for _ in range(400):
        if set(still_there()) - before: break
        time.sleep(0.05)
    time.sleep(0.5) # until it is confined
    parent.send_signal(signal.SIGKILL); parent.wait()
    for _ in range(100):
        if not set(still_there()) - before: break
        time.sleep(0.05)
    assert not set(still_there()) - before

"""Run folders under kills, torn and foreign lines, two writers, changed configs, full and read-only disks."""
import contextlib, errno, hashlib, json, os, platform, random, resource, signal, subprocess, threading, time, zlib
from datetime import datetime
from pathlib import Path
import pytest
from shopping_grpo.core import StoreError, file_digest
from shopping_grpo.journal import Journal, Lock, parse_line, process_start
from shopping_grpo.store import BRIEF, FAULTS, Run
from shopping_grpo.table import EPISODE, episode_frame, episode_table

CONFIG = {'policy': 'rule', 'k': 4, 'strict': True, 'sampling': {'temperature': 0.5, 'stop': ['</s>']}, 'limit': None}

def plan(n): return [(f'task-{i // 2}', i % 2) for i in range(n)]

def good(pair, **more): return dict(task_key=pair[0], attempt=pair[1], outcome='purchased', reward={'value': 1.0, 'valid': True}) | more

def bad(pair): return dict(task_key=pair[0], attempt=pair[1], outcome='error', reward={'value': None, 'valid': False}, error={'type': 'PolicyError', 'message': '503'})

def open_run(root, n=6, **more): return Run.open('eval', 'rule', **dict(config=CONFIG, planned=plan(n), root=root) | more)

def finished(root, n=6, **more):
    with open_run(root, n, **more) as run:
        for pair in run.owed(): run.add(good(pair))
    return run

def snapshot(folder): return {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob('*') if p.is_file()}

def fork(work): # pid of a child that runs `work`, quietly, and exits with 0 or 1
    if pid := os.fork(): return pid
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        work()
        code = 0
    finally: os._exit(code)

# C1: killed at random times, restarted until done

def record(pair): # 2 kB to 200 kB, the same for the same pair
    name = f'{pair[0]}/{pair[1]}'.encode()
    return good(pair, steps=[(hashlib.sha256(name).hexdigest() * 3200)[:2_000 + zlib.crc32(name) % 198_000]])

def collect(root, n, acknowledge):
    run = open_run(root, n)
    for pair in run.owed():
        run.add(record(pair))
        os.write(acknowledge, f'{pair[0]} {pair[1]}\n'.encode())
    run.finish()

def kill_until_done(root, n, kills, rng): # real kills, and the pairs whose `add` returned
    told, tell = os.pipe()
    killed = 0
    while True:
        pid = fork(lambda: collect(root, n, tell))
        if killed < kills:
            time.sleep(rng.uniform(0, .06))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    os.close(tell)
    with open(told) as f: acknowledged = [(key, int(attempt)) for key, attempt in map(str.split, f)]
    return killed, acknowledged

def kills(tmp_path, total, runs, n):
    rng, done, count, torn = random.Random(0), 0, 0, 0
    want = {pair: record(pair) for pair in plan(n)}
    while done < total or count < runs:
        root = tmp_path/str(count)
        killed, acknowledged = kill_until_done(root, n, kills=3, rng=rng)
        run = Run.load(root/'eval'/'rule')
        assert run.status == 'done' and run.changed() == []
        assert run.notes == [] and run._episodes.torn() == 0                       # 0 unreadable lines, nothing to report
        assert len(run.ledger.places) == n                                         # nothing repeated
        assert len(set(acknowledged)) == len(acknowledged)                         # no finished episode was run twice
        rows = {(r['task_key'], r['attempt']): r for r in run.episodes()}
        assert rows.keys() == want.keys()
        assert all(want[p].items() <= rows[p].items() for p in want)               # the set of an undisturbed run
        assert len(run.manifest['sittings']) <= killed + 1
        assert all(s['seconds'] is not None for s in run.manifest['sittings'])
        for p in (root/'eval'/'rule').iterdir(): p.unlink()
        done, count = done + killed, count + 1
    assert done >= total
    return done, count

def test_kills(tmp_path): kills(tmp_path, total=50, runs=20, n=150)

@pytest.mark.slow
def test_many_kills_of_long_runs(tmp_path): kills(tmp_path, total=300, runs=60, n=400)

def test_kills_of_an_errored_run_keep_its_tries(tmp_path):
    def sitting():
        run = open_run(tmp_path, 4, tries=3)
        for pair in run.owed(): run.add(bad(pair))
        os.kill(os.getpid(), signal.SIGKILL)
    for tries in (1, 2, 3):
        os.waitpid(fork(sitting), 0)
        assert Run.load(tmp_path/'eval'/'rule').counts()['owed'] == (0 if tries == 3 else 4)
    with open_run(tmp_path, 4, tries=3) as run: pass
    assert run.status == 'done' and run.counts() == dict(planned=4, done=0, errored=4, owed=0, retried=8)

# C2: torn tails

def test_torn_at_every_byte_of_three_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(os, 'fsync', lambda fd: None) # 600 openings; no power is cut here
    run = open_run(tmp_path)
    for pair in plan(6)[:5]: run.add(good(pair, steps=['茶']))
    run.close()
    path = run.path/'episodes.jsonl'
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord('\n')]
    for cut in range(ends[1], len(data) + 1):
        path.write_bytes(data[:cut])
        whole = max(e for e in ends if e <= cut)
        run = open_run(tmp_path)
        assert path.read_bytes() == data[:whole]
        assert run.counts()['done'] == ends.index(whole) + 1
        assert any(f'cut {cut - whole} bytes' in note for note in run.notes) == (cut > whole)
        run.close()

def test_append_after_a_torn_tail_loses_nothing(tmp_path):
    run = open_run(tmp_path)
    run.add(good(plan(6)[0])); run.close()
    with open(run.path/'episodes.jsonl', 'ab') as f: f.write(b'{"task_key":"task-0","attempt":1,"outc' + b'x' * 200_000)
    finished(tmp_path)
    run = Run.load(run.path)
    assert run.counts()['done'] == 6 and len(run.ledger.places) == 6 and not run.ledger.faults

def test_a_reader_leaves_a_torn_tail_alone(tmp_path):
    run = finished(tmp_path)
    path = run.path/'episodes.jsonl'
    with open(path, 'ab') as f: f.write(b'{"half')
    before = path.read_bytes()
    again = Run.load(run.path)
    assert again.counts()['done'] == 6 and '6 bytes' in again.notes[0] and path.read_bytes() == before
    assert open_run(tmp_path).status == 'done' and path.read_bytes() == before

def test_metrics_are_repaired_too(tmp_path):
    with Run.open('grpo', 'tiny', config={}, root=tmp_path) as run: run.log(0, loss=1.0)
    run.manifest['status'] = 'started'
    run._write('manifest.json', run.manifest)
    with open(run.path/'metrics.jsonl', 'ab') as f: f.write(b'{"loss":0.')
    with Run.open('grpo', 'tiny', config={}, root=tmp_path) as run: run.log(1, loss=float('inf'))
    assert run.notes[0] == 'cut 10 bytes of a torn line from metrics.jsonl'
    assert (run.path/'metrics.jsonl').read_text() == '{"loss":1.0,"step":0}\n{"loss":null,"step":1}\n'
    assert run.metrics().step.tolist() == [0, 1]

# C3: odd files. The run has six pairs; the file holds one good line for the first, then what is given

LINE = json.dumps(good(('task-0', 1))).encode()
NEWER = json.dumps(good(('task-0', 1), schema=2, reward=[1, 2], usage='many', mood={'new': 'field'}, seed='seven')).encode()
ODD = { # name -> bytes, faults with their lines, pairs done
    'blank lines':        (b'\n  \n' + LINE + b'\n\n', {'blank': [2, 3, 5]}, 2),
    'CRLF':               (LINE + b'\r\n', {'with CRLF': [2]}, 2),
    'invalid UTF-8':      (LINE.replace(b'task', b't\xffsk') + b'\n', {'not UTF-8': [2]}, 1),
    'binary':             (bytes(range(14, 256)) + b'\n' + b'\0' * 500 + b'\n', {'not UTF-8': [2], 'not JSON': [3]}, 1),
    'glued lines':        (LINE[:40] + LINE + b'\n', {'not JSON': [2]}, 1),
    'foreign values':     (b'[1]\n"text"\nnull\n{"prompt": "buy tea"}\n', {'no episode': [2, 3, 4, 5]}, 1),
    'wrong types':        (b'{"task_key": 1, "attempt": 0, "outcome": "x"}\n{"task_key": "task-0", "attempt": true, "outcome": "x"}\n'
                           b'{"task_key": "task-0", "attempt": 1, "outcome": "x", "schema": "b"}\n', {'no episode': [2, 3, 4]}, 1),
    'NaN':                (LINE.replace(b'1.0', b'NaN') + b'\n', {'not JSON': [2]}, 1),
    'the same line twice':(LINE + b'\n' + LINE + b'\n', {'duplicate': [3]}, 2),
    'finished twice':     (LINE + b'\n' + LINE.replace(b'1.0', b'0.0') + b'\n', {'repeated': [3]}, 2),
    'a newer schema':     (NEWER + b'\n', {'of a newer schema': [2]}, 2),
    'another run':        (json.dumps(good(('task-0', 1), config='0' * 16)).encode() + b'\n' + LINE.replace(b'task-0', b'task-9') + b'\n',
                           {'of another config': [2], 'not planned': [3]}, 1),
    'byte order mark':    (b'\xef\xbb\xbf' + LINE + b'\n', {}, 2),
    'nested too deep':    (b'[' * 200_000 + b'\n', {'not JSON': [2]}, 1),
}
assert len(ODD) >= 12 and {f for _, faults, _ in ODD.values() for f in faults} == FAULTS.keys()

@pytest.mark.filterwarnings('ignore:.*are shown as null')
@pytest.mark.parametrize('name', ODD)
def test_odd_file(tmp_path, name):
    data, faults, done = ODD[name]
    run = open_run(tmp_path)
    run.add(good(('task-0', 0))); run.close()
    with open(run.path/'episodes.jsonl', 'ab') as f: f.write(data)
    run = Run.load(run.path)
    assert dict(run.ledger.faults) == faults and run.counts()['done'] == done
    assert len(run.notes) == len(faults) and all(any(f in note for note in run.notes) for f in faults)
    assert len(run.frame()) == done and run.frame().columns.tolist() == EPISODE.names
    assert dict(run.frame().dtypes) == dict(episode_frame([]).dtypes) and run.scores().equals(run.frame()[run.scores().columns])
    run = finished(tmp_path) # the rest can be done, and the odd lines stay where they are
    assert run.status == 'done' and data in (run.path/'episodes.jsonl').read_bytes()
    assert Run.load(run.path).counts() | dict(retried=0) == dict(planned=6, done=6, errored=0, owed=0, retried=0)

def test_scores_are_the_frame_without_reading_it(tmp_path, monkeypatch):
    "While a run is written, after it, and when it is loaded; for errored, retried, invalid and bare rows; and no line is read for it."
    run = open_run(tmp_path)
    def same(run):
        whole = run.frame()
        with monkeypatch.context() as m:
            m.setattr(Journal, 'lines_at', None)
            found = run.scores()
        assert set(found.columns) == set(BRIEF) and found.equals(whole[found.columns]) and (found.dtypes == whole[found.columns].dtypes).all()
        return found
    for pair in plan(6)[:3]: run.add(bad(pair))
    for pair in plan(6)[:2]: run.add(good(pair, lang='zh', category='茶', difficulty=3, split='test', policy='rule', success=True, guard_rejections=2, steps=[{}, {}]))
    run.add(good(plan(6)[3], reward={'value': 1.0, 'valid': False}, n_steps=4))
    assert same(run).success.tolist()[:2] == [True, True] and same(run).reward.isna().tolist() == [False, False, True, True]
    run.close()
    assert same(Run.load(run.path)).n_steps.tolist()[:2] == [2, 2]

def test_the_latest_row_counts(tmp_path):
    run = open_run(tmp_path)
    run.add(good(('task-0', 0))); run.close()
    with open(run.path/'episodes.jsonl', 'ab') as f: f.write(json.dumps(good(('task-0', 0), outcome='answered')).encode() + b'\n')
    assert [r['outcome'] for r in Run.load(run.path).episodes()] == ['answered']
    assert [r['outcome'] for r in Run.load(run.path).episodes(every=True)] == ['purchased', 'answered']

@pytest.mark.parametrize('name, text', [('manifest.json', ''), ('manifest.json', '{"status": "st'), ('manifest.json', '[]'), ('plan.json', '{'), ('plan.json', None)])
def test_damaged_folder_is_one_clear_error(tmp_path, name, text):
    path = finished(tmp_path).path/name
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(StoreError, match=f'{name} of eval/rule'): Run.load(path.parent)

def test_episodes_without_a_manifest_are_not_adopted(tmp_path):
    run = finished(tmp_path)
    (run.path/'manifest.json').unlink()
    with pytest.raises(StoreError, match='no manifest.json'): open_run(tmp_path)

# C4: two writers

def race(root, stale):
    def hold():
        open_run(root)
        os.kill(os.getpid(), signal.SIGKILL)
    if stale: os.waitpid(fork(hold), 0)
    (ready, go), (told, tell), (leave, stop) = os.pipe(), os.pipe(), os.pipe()
    def compete():
        os.close(go), os.close(stop)
        os.read(ready, 1) # returns for both when the parent closes `go`
        try: run, word = (r := open_run(root)), f'won {os.getpid()} {int(any("stale" in n for n in r.notes))}'
        except StoreError as e: word = f'lost {e}'
        os.write(tell, word.encode() + b'\n')
        os.read(leave, 1)
    pids = [fork(compete) for _ in range(2)]
    os.close(go)
    words, text = [], b''
    while text.count(b'\n') < 2: text += os.read(told, 4096)
    os.close(stop)
    assert [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids] == [0, 0]
    for end in (ready, told, tell, leave): os.close(end)
    return pids, sorted(text.decode().splitlines(), reverse=True)

def test_races_of_two_writers(tmp_path):
    for n in range(20):
        pids, (won, lost) = race(tmp_path/str(n % 7), stale=n % 2) # seven folders, so that most are resumed
        _, winner, broke = won.split()
        assert int(winner) in pids and lost.startswith(f'lost eval/rule is being written by process {winner} since ')
        assert broke == '1' or n % 2 == 0

def test_second_writer_in_one_process_and_reader_beside_a_writer(tmp_path):
    run = open_run(tmp_path)
    run.add(good(plan(6)[0]))
    with pytest.raises(StoreError, match=f'being written by process {os.getpid()}'): open_run(tmp_path)
    reader = Run.load(run.path)
    assert reader.status == 'started' and reader.counts()['done'] == 1
    with pytest.raises(StoreError, match='not open for writing'): reader.add(good(plan(6)[1]))
    run.add(good(plan(6)[1]))
    assert Run.load(run.path).counts()['done'] == 2
    run.close()
    assert open_run(tmp_path).notes == ['goes on: 6 planned, 2 done, 0 errored, 4 owed, 0 retried']

def test_lock_of_a_dead_process_with_a_reused_id(tmp_path):
    (tmp_path/'.lock').write_text(json.dumps({'pid': os.getpid(), 'born': 1, 'since': 'long ago'}))
    lock = Lock(tmp_path/'.lock')
    assert lock.take('run')['born'] == 1 and lock.held
    lock.drop()

def test_a_zombie_is_dead():
    pid = fork(lambda: None)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process_start(pid) is None and os.waitpid(pid, 0)[0] == pid and process_start(pid) is None

def test_a_forked_child_is_not_the_writer_and_does_not_keep_the_lock(tmp_path):
    told, tell = os.pipe()
    def parent():
        run = open_run(tmp_path)
        def child(): # outlives its parent
            try: word = run.add(good(plan(6)[0]))
            except StoreError as e: word = e
            os.write(tell, f'{os.getpid()} {word}\n'.encode())
            signal.pause()
        fork(child)
        signal.pause()
    pid = fork(parent)
    child, refusal = os.read(told, 4096).decode().split(' ', 1) # one short write, read whole
    os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0)
    try: run = open_run(tmp_path)
    finally: os.kill(int(child), signal.SIGKILL)
    assert 'not open for writing in this process' in refusal and any('stale' in note for note in run.notes)

def test_a_run_that_another_process_finished_meanwhile_is_left_alone(tmp_path, monkeypatch):
    open_run(tmp_path).close()
    take = Lock.take
    def late(lock, what): # somebody is faster, between the first look and the lock
        monkeypatch.setattr(Lock, 'take', take)
        finished(tmp_path)
        before.update(snapshot(tmp_path))
        return take(lock, what)
    before = {}
    monkeypatch.setattr(Lock, 'take', late)
    run = open_run(tmp_path)
    assert run.status == 'done' and 'nothing to do' in run.notes[-1] and snapshot(tmp_path) == before

# C5: a changed config

def changes(value, path=()): # (dotted key, changed config) for every key, at every depth
    for key, old in value.items():
        yield '.'.join((*path, key)), value | {key: 'changed'}
        yield '.'.join((*path, key)), {k: v for k, v in value.items() if k != key}
        if isinstance(old, dict): yield from ((k, value | {key: inner}) for k, inner in changes(old, (*path, key)))
    yield '.'.join((*path, 'added')), value | {'added': 1}

SUBTLE = [('k', CONFIG | {'k': 4.0}), ('strict', CONFIG | {'strict': 1}), ('limit', CONFIG | {'limit': False}),
          ('sampling.stop', CONFIG | {'sampling': {'temperature': 0.5, 'stop': ['</s>', '']}})]

def test_each_changed_key_is_refused_and_named(tmp_path):
    run = open_run(tmp_path)
    run.add(good(plan(6)[0])); run.close()
    before, seen = snapshot(run.path), set()
    for key, config in [*changes(CONFIG), *SUBTLE]:
        with pytest.raises(StoreError, match=f'config.{key} was .*, now .*Go back .* take another name, or delete') as e: open_run(tmp_path, config=config)
        assert str(e.value).count(' was ') == 1
        seen.add(key)
    assert snapshot(run.path) == before and seen >= {'policy', 'k', 'strict', 'sampling', 'sampling.temperature', 'sampling.stop', 'limit', 'added'}
    assert len(open_run(tmp_path, config=dict(reversed(CONFIG.items()))).owed()) == 5 # order is no change

def test_seeds_plan_inputs_and_parents_are_part_of_the_run(tmp_path):
    data = tmp_path/'tasks.jsonl'
    data.write_text('{}')
    parent = finished(tmp_path/'first')
    ask = dict(seeds={'run': 1}, inputs=[data], parents=[parent])
    open_run(tmp_path, **ask).close()
    open_run(tmp_path, **ask, parameters={'workers': 8}).close() # may change
    for key, other in [('seeds.run', dict(seeds={'run': 2})), ('plan.pairs', dict(planned=plan(8))), ('plan.digest', dict(planned=plan(7)[1:])), ('parents', dict(parents=[]))]:
        with pytest.raises(StoreError, match=f'{key}.* was '): open_run(tmp_path, **ask | other)
    data.write_text('{"other": 1}')
    with pytest.raises(StoreError, match='inputs.*tasks.jsonl was "[0-9a-f]{64}", now'): open_run(tmp_path, **ask)
    assert Run.load(tmp_path/'eval'/'rule').manifest['parameters'] == {'workers': 8}

# C6: full and read-only disks

@contextlib.contextmanager
def tmpfs(path, size):
    path.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', path], capture_output=True).returncode: pytest.skip('a tmpfs cannot be mounted here')
    try: yield path
    finally: subprocess.run(['umount', '-l', path], check=True)

def fill(run): # appends until the disk refuses
    for pair in run.owed():
        try: run.add(good(pair, steps=['x' * 40_000]))
        except StoreError as e: return str(e)
    raise AssertionError('the disk never filled')

def check_whole(run):
    assert not [p for p in run.path.iterdir() if p.name.startswith('.') and p.name != '.lock']   # nothing half renamed
    assert json.loads((run.path/'manifest.json').read_text())['status'] == 'started'
    data = (run.path/'episodes.jsonl').read_bytes()
    assert data.endswith(b'\n') and all(parse_line(line)[1] is None for line in data.splitlines())
    assert data.count(b'\n') == run.counts()['done'] > 0

def test_disk_full(tmp_path):
    with tmpfs(tmp_path/'disk', '1m') as disk:
        (disk/'ballast').write_bytes(b'x' * 500_000)
        run = open_run(disk, 20)
        assert 'episodes.jsonl: No space left on device' in fill(run)
        check_whole(run)
        with open(disk/'more', 'wb', buffering=0) as f, contextlib.suppress(OSError):
            while True: f.write(b'x' * 512)                            # not one page is left
        with pytest.raises(StoreError, match='manifest.json of eval/rule: No space left'): run.close()
        check_whole(run)
        with pytest.raises(StoreError, match='No space left'): Run.open('eval', 'second', config={}, planned=plan(2), root=disk)
        assert not (disk/'eval'/'second'/'manifest.json').exists()
        (disk/'ballast').unlink(); (disk/'more').unlink()
        kept = Run.load(run.path).counts()['done']
        with open_run(disk, 20) as run:
            assert run.counts()['done'] == kept
            for pair in run.owed(): run.add(good(pair))
        assert run.status == 'done' and run.changed() == []

def test_file_size_limit(tmp_path):
    run = open_run(tmp_path, 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try: message = fill(run)
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 'episodes.jsonl: File too large; nothing is half written' in message
    check_whole(run)
    for pair in run.owed(): run.add(good(pair))      # the same run goes on when the limit is gone
    run.finish()
    assert Run.load(run.path).counts()['done'] == 20

def test_a_manifest_that_cannot_be_written_is_not_done(tmp_path, monkeypatch):
    run = open_run(tmp_path)
    for pair in run.owed(): run.add(good(pair))
    def full(path, data): raise OSError(errno.ENOSPC, 'No space left on device')
    with monkeypatch.context() as m:
        m.setattr('shopping_grpo.store.atomic_write', full)
        with pytest.raises(StoreError, match='manifest.json of eval/rule: No space left on device'): run.finish()
    assert run.status == 'started'
    with pytest.raises(StoreError, match='not open for writing'): run.finish()
    with open_run(tmp_path) as run: assert run.owed() == []
    assert Run.load(run.path).status == 'done'

def test_an_interrupt_in_the_middle_of_a_line_takes_it_back(tmp_path):
    journal = Journal(tmp_path/'lines.jsonl')
    journal.open(); journal.append(b'{"n":1}\n')
    class Interrupted: # writes half a line, then the user presses Ctrl-C
        def __init__(self, file): self.file, self.calls = file, 0
        def write(self, data):
            self.calls += 1
            if self.calls == 2: raise KeyboardInterrupt
            return self.file.write(data[:3])
        def fileno(self): return self.file.fileno()
    file, journal._file = journal._file, Interrupted(journal._file)
    with pytest.raises(KeyboardInterrupt): journal.append(b'{"n":2}\n')
    journal._file = file
    journal.append(b'{"n":3}\n'); journal.drop()
    assert (tmp_path/'lines.jsonl').read_bytes() == b'{"n":1}\n{"n":3}\n'

@contextlib.contextmanager
def read_only(tmp_path): # yields a folder and a function that makes it read-only
    if os.geteuid(): # a plain user: permissions are enough
        disk = tmp_path/'disk'
        disk.mkdir()
        def lock(): [p.chmod(0o555 if p.is_dir() else 0o444) for p in [disk, *disk.rglob('*')]]
        try: yield disk, lock
        finally: [p.chmod(0o755) for p in [disk, *disk.rglob('*')] if p.is_dir()]
    else: # root passes any permission, but not a read-only mount
        with tmpfs(tmp_path/'disk', '4m') as disk: yield disk, lambda: subprocess.run(['mount', '-o', 'remount,ro', disk], check=True)

def test_read_only_folder(tmp_path):
    with read_only(tmp_path) as (disk, lock):
        done = finished(disk)
        half = Run.open('eval', 'half', config={}, planned=plan(2), root=disk)
        half.add(good(plan(2)[0])); half.close()
        lock()
        before = snapshot(disk)
        with pytest.raises(StoreError, match='eval/new: (Read-only file system|Permission denied)'): Run.open('eval', 'new', config={}, root=disk)
        with pytest.raises(StoreError, match='eval/half: (Read-only file system|Permission denied)'): Run.open('eval', 'half', config={}, planned=plan(2), root=disk)
        assert Run.load(half.path).counts()['owed'] == 1 and len(Run.load(done.path).frame()) == 6
        assert open_run(disk).notes == ['is done already: 6 planned, 6 done, 0 errored, 0 owed, 0 retried; nothing to do']  # a finished run needs no write
        assert snapshot(disk) == before

# C10: errors are owed again, then counted

def test_errors_are_owed_again_then_counted(tmp_path):
    down = {pair: n for n, pair in enumerate(plan(10))} # pair n is down for n tries
    sittings = rows = 0
    while True:
        run = open_run(tmp_path, 10, tries=4)
        if not (todo := run.owed()): break
        sittings += 1
        assert sittings <= 4
        for pair in todo: run.add(bad(pair) if run.ledger.rows[pair] < down[pair] else good(pair))
        rows += len(todo)
        if run.owed():
            with pytest.raises(StoreError, match=r'still owes \d+ of 10 episodes, first task task-'): run.finish()
        run.close()
    run.finish()
    assert run.counts() == dict(planned=10, done=4, errored=6, owed=0, retried=rows - 10) and sittings == 4
    frame = Run.load(run.path).frame()
    assert len(frame) == 10 and frame.reward.count() == 4 and (frame.outcome == 'error').sum() == 6
    assert len(Run.load(run.path).frame(every=True)) == rows == len((run.path/'episodes.jsonl').read_text().splitlines())

def test_fresh_pairs_come_before_errored_ones(tmp_path):
    run = open_run(tmp_path)
    for pair in plan(6)[:3]: run.add(bad(pair))
    run.add(bad(plan(6)[0]))
    assert run.owed() == [*plan(6)[3:], *plan(6)[1:3], plan(6)[0]]

def test_more_tries_reopen_a_finished_run(tmp_path):
    with open_run(tmp_path, 2, tries=1) as run: run.add(good(plan(2)[0])); run.add(bad(plan(2)[1]))
    assert run.status == 'done' and run.counts()['errored'] == 1
    with open_run(tmp_path, 2, tries=2) as run: run.add(good(plan(2)[1]))
    assert run.counts() == dict(planned=2, done=2, errored=0, owed=0, retried=1) and run.manifest['tries'] == 2

def test_a_models_failure_is_a_result(tmp_path):
    with open_run(tmp_path, 2) as run:
        for pair in run.owed(): run.add(good(pair, outcome='max_turns', reward={'value': -0.15, 'valid': True}))
        assert run.owed() == []
    assert run.frame().reward.tolist() == [-0.15, -0.15]

def test_the_number_of_an_invalid_reward_is_null(tmp_path):
    row = good(plan(1)[0], reward={'value': 0.0, 'valid': False}, native={'value': 1.0, 'valid': False})
    assert episode_table([row]).select(['reward', 'native_value']).to_pylist() == [{'reward': None, 'native_value': None}]

# the rest of the contract

def test_a_finished_run_is_a_no_op(tmp_path):
    run = finished(tmp_path)
    before = snapshot(run.path)
    with open_run(tmp_path) as again:
        assert again.owed() == [] and again.status == 'done' and 'nothing to do' in again.notes[-1]
        again.finish()
        with pytest.raises(StoreError, match='not open for writing'): again.add(good(plan(6)[0]))
    assert snapshot(run.path) == before

def test_a_finished_run_whose_file_lost_lines_is_owed_again(tmp_path):
    run = finished(tmp_path)
    lines = (run.path/'episodes.jsonl').read_bytes().splitlines(keepends=True)
    (run.path/'episodes.jsonl').write_bytes(b''.join(lines[:4]))
    assert Run.load(run.path).changed() == ['episodes.jsonl'] and len(open_run(tmp_path).owed()) == 2

def test_add_refuses_by_name(tmp_path):
    run = open_run(tmp_path)
    run.add(good(('task-0', 0)))
    for row, words in [(good(('task-0', 0)), 'task task-0, attempt 0 is finished already'), (good(('task-9', 0)), 'task task-9, attempt 0 is not planned'),
                       (dict(task_key='task-0'), 'needs task_key .* got .*task_key'), (good(('task-0', 1), reward={'value': float('nan')}), 'task task-0, attempt 1 cannot be written as JSON'),
                       (good(('task-0', 1), policy=object()), 'attempt 1 cannot be written as JSON')]:
        with pytest.raises(StoreError, match=words): run.add(row)
    assert (run.path/'episodes.jsonl').read_bytes().count(b'\n') == 1
    run.add(good(('task-0', 1), steps=['half \ud83d, line\nbreak\u2028']))
    assert list(Run.load(run.path).episodes())[1]['steps'] == ['half \ufffd, line\nbreak\u2028']

@pytest.mark.parametrize('stage, name', [('..', 'x'), ('eval', 'a/b'), ('eval', ''), ('eval', '.hidden')])
def test_names_stay_in_the_folder(tmp_path, stage, name):
    with pytest.raises(StoreError, match='cannot name a run folder'): Run.open(stage, name, config={}, root=tmp_path)

def test_planned_twice_is_refused(tmp_path):
    with pytest.raises(StoreError, match='task t, attempt 0 is planned twice'): Run.open('eval', 'x', config={}, planned=[('t', 0), ('t', 0)], root=tmp_path)

def test_threads_share_one_writer(tmp_path):
    run = open_run(tmp_path, 200)
    pairs = iter(plan(200))
    def work():
        for pair in pairs_of():
            run.add(good(pair, steps=['x' * 5000], usage={'prompt': 3, 'cost': 0.25}))
            run.counts()
    guard = threading.Lock()
    def pairs_of():
        while True:
            with guard: pair = next(pairs, None)
            if pair is None: return
            yield pair
    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert [(r['task_key'], r['attempt']) for r in run.episodes()] == plan(200)      # every offset is right
    run.finish()
    again = Run.load(run.path)
    assert again.counts()['done'] == 200 and not again.ledger.faults and again.manifest['usage'] == {'prompt': 600, 'cost': 50.0}
    assert [(r['task_key'], r['attempt']) for r in again.episodes()] == plan(200)    # in the order of the plan, not of the file

def test_manifest_says_where_numbers_come_from(tmp_path):
    data = tmp_path/'tasks.jsonl'
    data.write_text('{}')
    with pytest.raises(ValueError):
        with open_run(tmp_path, seeds=7, inputs=[data], parameters={'workers': 2}) as run: raise ValueError(f'cannot parse {data}')
    m = Run.load(run.path).manifest
    assert m['status'] == 'failed' and m['error'] == {'type': 'ValueError', 'message': 'cannot parse tasks.jsonl'}
    run = finished(tmp_path, seeds=7, inputs=[data], parameters={'workers': 2})
    text = (run.path/'manifest.json').read_text()
    m = json.loads(text)
    assert m['status'] == 'done' and m['error'] is None and m['seeds'] == 7 and m['parameters'] == {'workers': 2} and m['config'] == CONFIG
    assert list(m['inputs'].values()) == [file_digest(data)] and m['outputs'].keys() == {'episodes.jsonl', 'plan.json'}
    assert m['outputs']['episodes.jsonl'] == file_digest(run.path/'episodes.jsonl')
    assert m['python'] == platform.python_version() and m['hardware']['cpus'] == os.cpu_count() and 'numpy' in m['versions']
    assert len(m['sittings']) == 2 and m['wall_seconds'] == round(sum(s['seconds'] for s in m['sittings']), 3)
    assert ' "/' not in text and platform.node() not in (*m['hardware'].values(), m['git'])

def test_outputs_are_what_the_run_wrote_but_not_its_own_notebook(tmp_path):
    with Run.open('report', 'x', config={}, root=tmp_path) as run:
        (run.path/'figures').mkdir()
        for name in ('figures/a.svg', 'failed.ipynb', '.hidden'): (run.path/name).write_text(name)
    assert run.manifest['outputs'] == {n: file_digest(run.path/n) for n in ('episodes.jsonl', 'figures/a.svg')}

def test_wall_time_covers_killed_sittings(tmp_path):
    def sitting():
        run = open_run(tmp_path)
        run.add(good(plan(6)[0]))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(fork(sitting), 0)
    path = tmp_path/'eval'/'rule'/'episodes.jsonl'
    began = datetime.fromisoformat(json.loads((path.parent/'manifest.json').read_text())['sittings'][0]['began']).timestamp()
    os.utime(path, (began + 100,) * 2)                # its last line, 100 seconds after its begin, however slow the machine
    first, second = finished(tmp_path).manifest['sittings']
    assert 99 <= first['seconds'] <= 101 and second['seconds'] < 99

def test_a_parent_must_be_done_and_is_checked_by_digest(tmp_path):
    parent = open_run(tmp_path)
    parent.close()
    ask = dict(config={}, parents=[parent.path], root=tmp_path)
    with pytest.raises(StoreError, match='parent run eval/rule is not done'): Run.open('report', 'x', **ask)
    finished(tmp_path)
    with Run.open('report', 'x', **ask) as report: pass
    assert report.manifest['parents'] == {'eval/rule': file_digest(parent.path/'manifest.json')} and report.changed() == []
    (parent.path/'manifest.json').write_text('{}')
    assert report.changed() == ['eval/rule/manifest.json']

def test_an_open_plan_takes_what_comes(tmp_path):
    with Run.open('grpo', 'tiny', config={}, root=tmp_path) as run:
        run.add(good(('a', 0))); run.add(good(('b', 0))); run.add(good(('a', 0), outcome='answered')) # resumed from an older checkpoint
    assert [(r['task_key'], r['outcome'], r['retry']) for r in run.episodes()] == [('a', 'answered', 1), ('b', 'purchased', 0)]
    assert run.counts() == dict(planned=2, done=2, errored=0, owed=0, retried=1) and not Run.load(run.path).ledger.faults

def test_leftovers_of_a_killed_manifest_write_are_removed(tmp_path):
    run = open_run(tmp_path)
    run.close()
    (run.path/'.manifest.json.x7k2').write_text('{"half')
    open_run(tmp_path)
    assert sorted(p.name for p in run.path.iterdir()) == ['.lock', 'episodes.jsonl', 'manifest.json', 'plan.json']

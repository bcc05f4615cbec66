"A real server in a process of its own: the same episodes as at home, no cross-talk, nothing lost, nothing done twice, nothing told."
import base64, http.client, json, os, re, signal, socket, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
import pytest
for extra in ('starlette', 'uvicorn', 'websockets'): pytest.importorskip(extra, reason='the server needs its extra: pip install -c constraints.txt -e ".[serve]"')
from shopping_grpo.core import DataError, Draws, ShopError, canonical_json
from shopping_grpo.env import Message, ToolCall, check_env, load_env
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.policy import scripted
from shopping_grpo.request import Requests
from shopping_grpo.rollout import rollout
from shopping_grpo.search import tokens
from shopping_grpo.serve import Refusal, Server, marks, open_desk
from shopping_grpo.serve_client import HttpEnv, ServerError, SocketEnv, remote_task
from shopping_grpo.task import load_tasks, save_tasks

ROOT = Path(__file__).resolve().parents[1]
CANARY = 'zzcanary' # stands in every goal and nowhere else
LEAK = re.compile(r'Traceback|\.py\b|site-packages|File "|/tmp/|/home/|/root/|/work/')


class Served:
    "A server started by the command line, and what it said."
    def __init__(self, root, *more, port=0):
        code = 'from shopping_grpo.cli import main; main()'
        self.log = open(root/f'log-{time.monotonic_ns()}', 'w+')
        self.process = subprocess.Popen([sys.executable, '-c', code, 'serve', '--size', 'tiny', '--port', str(port), *more], cwd=root, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=os.environ | {'SHOPPING_GRPO_ROOT': str(root), 'COLUMNS': '200', 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])})
        self.said = self.process.stdout.readline()
        assert ' at http://' in self.said, self.said + self.errors()
        self.url = self.said.split(' at ')[1].strip()
        self.port = int(self.url.rsplit(':', 1)[1])

    def errors(self): self.log.seek(0); return self.log.read()

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None: self.process.send_signal(how)
        return self.process.wait(30)

    def __enter__(self): return self
    def __exit__(self, *_): self.end(signal.SIGKILL); self.process.stdout.close(); self.log.close()

    def raw(self, method, path, body=None, lease='', **headers):
        "One request without our client: status and text."
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=30)
        head = {'content-type': 'application/json'} | ({'authorization': f'Bearer {lease}'} if lease else {}) | {k.replace('_', '-'): v for k, v in headers.items()}
        c.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body), head)
        r = c.getresponse()
        try: return r.status, r.read().decode()
        finally: c.close()

    def number(self, name): return next(float(x.split()[-1]) for x in self.raw('GET', '/metrics')[1].splitlines() if x.split('{')[0].split()[0] == f'shopping_grpo_{name}')

    def until(self, free, seconds=60):
        end = time.monotonic() + seconds
        while self.number('sessions') > free:
            assert time.monotonic() < end, self.number('sessions')
            time.sleep(0.2)


@pytest.fixture(scope='module')
def tasks(tiny):
    drawn = Requests(tiny, seed=5, mix=dict(single=1)).tasks('train', 24)
    return [replace(t, scenario='multi', goal=replace(t.goal, constraints=(*(replace(c, source='clarification') if i == len(t.goal.constraints) - 1 else c for i, c in enumerate(t.goal.constraints)),
        replace(t.goal.constraints[-1], kind='feature', field='', value=CANARY, op='eq', hard=False)))) if n % 3 == 0 else t for n, t in enumerate(drawn)]

@pytest.fixture(scope='module')
def root(tiny, tiny_engine, tasks, tmp_path_factory):
    root = tmp_path_factory.mktemp('root')
    (root/'settings.ini').write_text((ROOT/'settings.ini').read_text())
    built = root/'data'/'built'/'tiny'
    built.mkdir(parents=True)
    (built/'catalog').symlink_to(tiny.path); (built/'index').symlink_to(tiny_engine.path)
    save_tasks(built/'tasks'/'shopsim-train.jsonl', tasks)
    return root

@pytest.fixture(scope='module')
def server(root):
    with Served(root, '--sessions', '70') as s: yield s

@pytest.fixture
def home(tiny, tiny_engine): return ShopSim(tiny, tiny_engine)


def graded(env): return [marks(env.score()), marks(env.score_native()), env.state_hash()]

def played(env, policy, task, seed=0):
    r = rollout(policy, env, task, seed)
    assert 'error' not in r, r['error']
    return canonical_json([r[k] for k in ('id', 'task_key', 'env', 'env_version', 'prompt', 'steps', 'outcome', 'success', 'guard_rejections')] + graded(env))

ODD = [ToolCall('fly', {}), ToolCall('open_product', {'asin': 7}), ToolCall('search_products', '{"query": "x"'), ToolCall('search_products', {'query': 'x' * 10**6}), ToolCall('search_products', 'y' * 10**6), ToolCall(None, None),
    ToolCall('search_products', {'query': float('nan')}), ToolCall('search_products', {'query': '\ud800'}), ToolCall('search_products', {'query': '红 茶', 'x': object()}), ToolCall('search_products', '{"query": "茶", "query": "y"}')]

def walk(env, task, seed, n=20):
    "A random walk with nonsense in it: everything seen, step by step."
    d, words = Draws(seed, 'walk'), tokens(task.prompt)
    o, done, out = env.reset(task, seed), False, []
    for _ in range(n):
        out.append([o.text, o.legal, o.error, o.data, done])
        if done: break
        name, data = d.pick([t for t in o.legal if t not in ('buy_now', 'finish_without_purchase') or d.one(6) == 0] or o.legal), o.data
        args = dict(search_products=lambda: {'query': ' '.join(d.sample(words, 3))}, open_product=lambda: {'asin': d.pick(data['products'])['asin']}, ask_shopper=lambda: {'question': d.pick(words)},
            select_option=lambda: {'value': d.pick([o['value'] for x in data['available_options'].values() for o in x])}, finish_without_purchase=lambda: {'reason': 'no_suitable_product'})
        step = env.step(d.pick(ODD) if d.one(8) == 0 else ToolCall(name, args.get(name, dict)()))
        o, done = step.observation, step.done
    if not done: env.stop('max_time')
    return canonical_json(out + graded(env))


@pytest.mark.parametrize('kind', [HttpEnv, SocketEnv])
def test_the_same_episodes_as_at_home(server, home, tiny, tasks, kind):
    "E5: scripted episodes and walks with nonsense: same rows, same grades, same end state. The client knows keys only."
    env = kind(server.url)
    for i, t in enumerate(tasks[:10]):
        far = remote_task('shopsim', dict(number=i, key=t.key, lang=t.lang, split=t.split, difficulty=t.difficulty))
        for name in ('rule', 'buy-first', 'random', 'do-nothing'): assert played(env, scripted(name, tiny), far, i) == played(home, scripted(name, tiny), t, i)
        assert played(env, scripted('oracle', tiny), t, i) == played(home, scripted('oracle', tiny), t, i) # it needs the goal, which only the caller has
        assert walk(env, t, i) == walk(home, t, i)
    env.close()
    assert server.number('sessions') == 0


def test_it_keeps_the_contract(server, tasks):
    env = HttpEnv(server.url)
    env._plain_state = lambda: 0 # stays on the server; that a refused call changes nothing is seen in the walks above
    check_env(env, tasks[1], [ToolCall('search_products', {'query': '茶'}), ToolCall('next_page'), ToolCall('fly'), ToolCall('back_to_search')])
    env.close()


@pytest.mark.parametrize('kind', [HttpEnv, SocketEnv])
def test_many_sessions_at_once(server, home, tasks, kind):
    "S1: 64 sessions open at the same time, moved on by eight threads; each sees what it would see alone."
    envs = [kind(server.url) for _ in range(64)]
    for i, e in enumerate(envs): e.reset(tasks[i % 24], i)
    assert server.number('sessions') == 64
    with ThreadPoolExecutor(8) as threads: seen = list(threads.map(lambda x: walk(x[1], tasks[x[0] % 24], x[0]), enumerate(envs)))
    assert seen == [walk(home, tasks[i % 24], i) for i in range(64)] and len(set(seen)) > 30
    for e in envs: e.close()
    server.until(0)


def test_nothing_is_told(server, tasks, tiny):
    "E6, S7: every kind of reply, searched for what the goal holds, for traces and for paths."
    said = [server.said]
    def ask(method, path, body=None, lease='', **headers):
        status, text = server.raw(method, path, body, lease, **headers)
        said.append(text)
        return json.loads(text) if text.startswith('{') else {}
    for path in ('/health', '/metrics', '/about', '/tasks', '/tasks?first=x', '/tasks?first=99999&n=5', '/../settings.ini', '/docs', '/sessions'): ask('GET', path)
    for i, t in enumerate(tasks[:9]):
        s = ask('POST', '/sessions', dict(task=t.key))
        path, lease = f"/sessions/{s['session']}", s['lease']
        act = lambda name, **args: ask('POST', path + '/step', dict(action=dict(name=name, args=args)), lease)
        act('search_products', query=t.prompt[:200]); act('open_product', asin='0'); act('fly', text='goal')
        ask('POST', path + '/score', {}, lease)
        for op, body in (('state', {}), ('goal', {}), ('score', dict(evidence=True)), ('step', dict(action=3)), ('stop', dict(outcome='purchased')), ('reset', dict(task='?'))): ask('POST', f'{path}/{op}', body, lease)
        if i % 2 and (first := act('search_products', query=tiny.at(i).title)['observation']['data'].get('products')):
            for o in act('open_product', asin=first[0]['asin'])['observation']['data'].get('available_options', {}).values(): act('select_option', value=o[0]['value'])
            act('buy_now')
        else: act('finish_without_purchase', reason='no_suitable_product')
        assert ask('POST', path + '/score', {}, lease)['reward']['valid']
        act('buy_now'); ask('GET', path, None, lease); ask('DELETE', path, None, lease)
    text = '\n'.join(said)
    assert CANARY not in text and not LEAK.search(text)
    assert not [a for t in tasks for a in t.goal.accepted if re.search(rf'{re.escape(a)}(?![\w-])', text) and '-' in a] # ids of variants; those of products are on the pages
    assert not LEAK.search(server.errors())


def test_capacity(root, tasks):
    "S2: one too many is refused with a code, and served as soon as there is room."
    with Served(root, '--sessions', '2') as s:
        one, two, three = HttpEnv(s.url), SocketEnv(s.url), HttpEnv(s.url)
        for _ in range(5):
            one.reset(0); two.reset(1)
            with pytest.raises(ServerError, match='all 2 sessions are taken') as e: three.reset(2)
            assert e.value.code == 'capacity' and s.raw('POST', '/sessions', {})[0] == 503
            one.close(); three.reset(2); three.close()


@pytest.mark.parametrize('n', [40, pytest.param(200, marks=pytest.mark.slow)])
def test_clients_that_vanish(root, n):
    "S3: connections that say nothing, half a request, half a body, and sessions whose clients are gone; all is free again after the timeout."
    with Served(root, '--sessions', str(n), '--idle', '2') as s:
        rss = lambda: int(re.search(r'VmRSS:\s+(\d+)', Path(f'/proc/{s.process.pid}/status').read_text())[1]) / 1024
        start = rss()
        halves = [b'', b'POST /sess', b'POST /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"task"',
            b'GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ' + base64.b64encode(bytes(16)) + b'\r\n\r\n']
        open_ = [socket.create_connection(('127.0.0.1', s.port)) for _ in range(n)]
        for i, c in enumerate(open_): c.sendall(halves[i % 4])
        held = [json.loads(s.raw('POST', '/sessions', {})[1]) for _ in range(n // 2)] # never asked anything again
        left = [SocketEnv(s.url) for _ in range(n // 2)]
        for e in left: e.reset(0); e._socket.socket.settimeout(None)
        assert s.number('sessions') > 0 and len(held) == n // 2
        for e in left[::2]: e._socket.socket.shutdown(socket.SHUT_RDWR) # killed; the others are just silent
        s.until(0, 30)
        end = time.monotonic() + 40
        for c in open_:
            c.settimeout(max(1, end - time.monotonic()))
            while c.recv(4096): pass # until the server has closed it
            c.close()
        assert rss() - start < 20 + n / 10
        assert s.raw('POST', '/sessions', {})[0] == 201
        with pytest.raises(ServerError): left[1].step(Message('still there?'))


def test_killed_and_started_again(root, tasks, tiny):
    "S4: an episode whose server was killed is an error without a grade; the same environment plays on when there is a server again."
    for kind in (HttpEnv, SocketEnv):
        with Served(root) as s:
            env, port = kind(s.url), s.port
            class Killer:
                name = 'killer'
                def begin(self, briefing, seed): self.n = 0
                def act(self, observation):
                    self.n += 1
                    if self.n == 2: s.end(signal.SIGKILL); self.next = Served(root, port=port)
                    return ToolCall('search_products', {'query': '茶'}) if self.n == 1 else ToolCall('back_to_search')
            policy = Killer()
            r = rollout(policy, env, tasks[0])
            with policy.next:
                assert r['outcome'] == 'error' and not r['reward']['valid'] and r['n_steps'] == 1 and r['error']['type'] == 'ServerError'
                again = rollout(scripted('rule', tiny), env, tasks[0])
                assert 'error' not in again and again['reward']['valid']
                env.close()


@pytest.mark.parametrize('n', [60, pytest.param(500, marks=pytest.mark.slow)])
def test_sent_twice_is_done_once(server, tasks, n):
    "S5: every request three times, two of them at once; stale and early ones are refused; nothing happens twice."
    s = json.loads(server.raw('POST', '/sessions', dict(task=0, request='x' * 20))[1])
    assert json.loads(server.raw('POST', '/sessions', dict(task=0, request='x' * 20))[1]) == s
    path, lease, words = f"/sessions/{s['session']}", s['lease'], tokens(tasks[0].prompt)
    send = lambda body: server.raw('POST', path + ('/reset' if 'seed' in body else '/step'), body, lease)
    d, id, done = Draws(0, 'twice'), 0, True
    for turn in range(n):
        id += 1
        body = dict(id=id, seed=turn) if done else dict(id=id, action=dict(name='search_products' if turn % 2 else 'back_to_search', args={'query': ' '.join(d.sample(words, 3))} if turn % 2 else {}))
        with ThreadPoolExecutor(2) as two: (a, b) = two.map(send, [body] * 2)
        assert a == b == send(body) and a[0] == 200
        assert send(body | dict(id=id + 2))[0] == 409 and (id == 1 or send(body | dict(id=id - 1))[0] == 409) and send(dict(id=id, action=dict(text='other')))[0] == 409
        done = json.loads(a[1])['done']
    assert server.raw('POST', '/sessions', dict(task=0, request='x' * 20))[0] == 409
    state = json.loads(server.raw('POST', path + '/state', {}, lease)[1])['state']
    assert server.raw('POST', path + '/step', dict(action=dict(name='fly')), 'not the lease')[0] == 404 and json.loads(server.raw('DELETE', path, None, 'nor this')[1]) == {'closed': False}
    assert json.loads(server.raw('POST', path + '/state', {}, lease)[1])['state'] == state
    assert [json.loads(server.raw('DELETE', path, None, lease)[1])['closed'] for _ in range(2)] == [True, False]


def test_a_lost_answer_is_asked_for_again(server, home, tasks):
    "The connection breaks after every second request was sent and before its answer; the episode is the same."
    class Torn(HttpEnv):
        sent = 0
        def _once(self, *request):
            reply, self.sent = super()._once(*request), self.sent + 1
            if self.sent % 2: self._hang_up(); raise ConnectionResetError('torn')
            return reply
    env = Torn(server.url)
    assert [walk(env, t, 1) for t in tasks[:3]] == [walk(home, t, 1) for t in tasks[:3]]
    env.close()


def test_rubbish(server):
    "S7, M1: anything but a proper request is answered in one line, and the server goes on."
    s = json.loads(server.raw('POST', '/sessions', {})[1])
    path, lease, d = f"/sessions/{s['session']}", s['lease'], Draws(0, 'rubbish')
    bodies = [b'', b'{', b'[]', b'null', b'"x"', b'[' * 100_000, b'{"a":' * 5000, b'\xff\xfe', b'{"id": 1e999}', b'{"id": true}', b'{"action": {"name": {}}}', b'{"action": {"name": "x", "args": {"a": NaN}}}', b'{"task": 1e5, "seed": 9}', b'{"seed": 99999999999999999999999}',
        b'{"task": -1}', b'{"task": [0]}', b'{"request": "short"}', b'{"outcome": ["stopped"]}', b'{"outcome": 3}', b'9' * 10_000, b'{"action": {"text": "\\ud800"}, "id": -5}', b'x' * (1 << 20) + b'yz'] + [bytes(d.ints(256, 50).tolist()) for _ in range(20)]
    for body in bodies:
        for at in ('/sessions', path + '/step', path + '/reset', path + '/stop', path + '/score'):
            status, text = server.raw('POST', at, body, lease)
            assert status < 500 and not LEAK.search(text) and (status < 300 or set(json.loads(text)) == {'error'} and len(text) < 400), (body[:40], at, status, text[:200])
    assert server.raw('POST', '/sessions', {}, origin='http://elsewhere.example')[0] == 403 and server.raw('GET', '/health', host='elsewhere.example')[0] == 400
    assert server.raw('POST', '/sessions', b'task=1', content_type='application/x-www-form-urlencoded')[0] == 415
    from websockets.sync.client import connect
    with connect(server.url.replace('http', 'ws') + '/ws') as ws:
        for text in ['', '{', '[]', '{"op": "goal"}', '{"op": "step"}', '{"op": "open", "task": "?"}', '{"op": ["open"]}', '{"op": "open", "id": 1}', '{"op": "open"}', '{"op": "score", "id": 4}', '{"op": "state", "id": 2}', '{"op": "step", "action": {}, "id": 1}']:
            ws.send(text)
            reply = ws.recv(20)
            assert not LEAK.search(reply) and ('error' in json.loads(reply)) == ('"score"' not in text and '"state"' not in text and text != '{"op": "open", "id": 1}'), (text, reply)
    with socket.create_connection(('127.0.0.1', server.port)) as cut: cut.sendall(b'POST /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"task"')
    server.raw('DELETE', path, None, lease)
    assert server.raw('GET', '/health')[0] == 200 and 'Traceback' not in server.errors()


def test_it_ends_well(root, tasks):
    "A request under way is answered, sockets are closed, nothing is printed; the address is free at once."
    with Served(root) as s:
        env, ws = HttpEnv(s.url), SocketEnv(s.url)
        env.reset(0); ws.reset(0)
        start = time.monotonic()
        s.end()
        assert time.monotonic() - start < 15 and s.errors() == ''
        with Served(root, port=s.port) as t: assert t.port == s.port and HttpEnv(t.url).about['tasks'] == 24
        with pytest.raises(ServerError) as e: ws.step(Message('x'))
        assert e.value.code in ('unreachable', 'no_session')


@pytest.mark.parametrize('args, message', [(['--port', '99999'], 'cannot serve on 127.0.0.1:99999'), (['--split', 'test'], "'test' of"), (['--split', 'all'], "'all' is unknown"), (['--shop', '{"colour": 1}'], "no option 'colour'"), (['--shop', 'x'], 'is not JSON'), (['--shop', '[1]'], 'must be a JSON object'), (['--env', 'attic'], "'attic' is unknown")])
def test_what_cannot_be_served(root, args, message, monkeypatch):
    from shopping_grpo.cli import app
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(root))
    with pytest.raises(ShopError, match=message): app(['serve', '--size', 'tiny', *(['--port', '0'] if '--port' not in args else []), *args], standalone_mode=False)

def test_a_port_that_is_taken(server, root):
    "By the command line: one line and exit code 1."
    r = subprocess.run([sys.executable, '-c', 'from shopping_grpo.cli import main; main()', 'serve', '--size', 'tiny', '--port', str(server.port)], cwd=root, capture_output=True, text=True, timeout=60, env=os.environ | {'SHOPPING_GRPO_ROOT': str(root), 'COLUMNS': '200'})
    assert r.returncode == 1 and r.stderr.strip().endswith('Address already in use; choose another --port or --host') and len(r.stderr.strip().splitlines()) == 1


class Broken(ShopSim):
    "A shop that breaks at the second search."
    def _seek(self, action, query, number):
        if query == 'boom': raise RuntimeError(f'{CANARY} in {__file__}')
        return super()._seek(action, query, number)

def test_a_shop_that_breaks(tiny, tiny_engine, tasks, caplog):
    "The client learns a reference, the log has the trace, the slot is free, the neighbours play on."
    desk = Server(Broken(tiny, tiny_engine), tasks, capacity=2)
    one, two = desk.open({}), desk.open({'task': 1})
    held = one['session'], one['lease']
    with pytest.raises(Refusal) as e: desk.ask(*held, 'step', {'id': 1, 'action': {'name': 'search_products', 'args': {'query': 'boom'}}})
    ref = re.search(r'under (\w+)$', str(e.value))[1]
    assert e.value.code == 'broken' and CANARY not in str(e.value) and not LEAK.search(str(e.value)) and ref in caplog.text and 'RuntimeError' in caplog.text
    with pytest.raises(Refusal, match='no such session'): desk.ask(*held, 'state', {})
    assert desk.ask(two['session'], two['lease'], 'state', {}) and len(desk.sessions) == 1


def test_final_tasks_are_served_to_evaluate(root, tasks, monkeypatch):
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(root))
    path = root/'data'/'built'/'tiny'/'tasks'/'shopsim-test.jsonl'
    save_tasks(path, [replace(t, split='test') for t in tasks[:3]])
    with pytest.raises(DataError, match='final set'): open_desk('shopsim', 'tiny', 'test')
    assert open_desk('shopsim', 'tiny', 'test', 'evaluate').about()['split'] == 'test'
    path.unlink()


@pytest.mark.slow
def test_soak(root, tasks, tiny):
    "S6: 2,000 episodes; memory stays flat after the first quarter."
    with Served(root) as s:
        env = HttpEnv(s.url)
        rss = lambda: int(re.search(r'VmRSS:\s+(\d+)', Path(f'/proc/{s.process.pid}/status').read_text())[1]) / 1024
        sizes = []
        for i in range(2000):
            rollout(scripted('rule' if i % 2 else 'random', tiny), env, tasks[i % 24], i % 24) # the same ones again and again: the caches are full after the first quarter
            if i % 500 == 499: sizes.append(rss())
            if i % 100 == 99: env.close()
        assert sizes[-1] - sizes[0] < 5


@pytest.mark.slow
@pytest.mark.parametrize('family', ['webshop', 'shoppingbench', 'ecomrlve'])
def test_every_family(family, tmp_path, monkeypatch):
    "E5: 30 tasks of each family in its own shop, which is made at first use: the same episodes, grades and end states."
    (tmp_path/'settings.ini').write_text((ROOT/'settings.ini').read_text())
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    home = load_env(family)
    built = home.catalog.path.parent
    theirs = [t for t in load_tasks(built/'tasks'/f'{family}-val.jsonl') if home.plays(t)][:30]
    with Served(tmp_path, '--env', family, '--size', built.name, '--split', 'val', '--purpose', 'select') as s:
        for kind in (HttpEnv, SocketEnv):
            env = kind(s.url)
            for i, t in enumerate(theirs):
                for name in ('oracle', 'rule', 'random'): assert played(env, scripted(name, home.catalog), t, i) == played(home, scripted(name, home.catalog), t, i)
            env.close()


def test_openenv_messages(server, home, tasks):
    "The dialect of OpenEnv, spoken by hand: the same observations and the same grade; nothing of the goal."
    from websockets.sync.client import connect
    before = server.number('sessions')
    with connect(server.url.replace('http', 'ws') + '/openenv/ws') as ws:
        def ask(kind, **data): ws.send(json.dumps(dict(type=kind, data=data))); return json.loads(ws.recv(20))
        assert ask('state')['data']['code'] == 'SESSION_ERROR' and ask('goal')['data']['code'] == 'VALIDATION_ERROR'
        for i, t in enumerate(tasks[:6]):
            o = home.reset(t, 7)
            said = ask('reset', task=t.key, seed=7)['data']
            assert said['observation']['text'] == o.text and said['reward'] is None and not said['done']
            for action in (dict(name='search_products', args={'query': t.prompt[:99]}), dict(name='fly', args='{'), dict(text='I give up')):
                step = home.step(Message(action['text']) if 'text' in action else ToolCall(**action))
                said = ask('step', **action, metadata={})['data']
                assert (said['observation']['text'], said['observation']['legal'], said['done']) == (step.observation.text, list(step.observation.legal), step.done)
            assert said['reward'] == home.score().value and ask('state')['data'] == dict(episode_id=f'{t.key}-7', step_count=3)
        assert ask('reset', seed=25)['data']['observation']['text'] == home.reset(tasks[1]).text
    server.until(before)


def test_openenv_client(server, home, tasks):
    "The real client and the real validator."
    before = server.number('sessions')
    client = pytest.importorskip('openenv.core.generic_client', reason='pip install openenv-core')
    from openenv.cli._validation import validate_running_environment
    report = validate_running_environment(server.url + '/openenv')
    assert report['passed'], report
    with client.GenericEnvClient(base_url=server.url + '/openenv').sync() as env:
        first = env.reset(task=2, seed=1)
        assert first.observation['text'] == home.reset(tasks[2], 1).text
        env.step({'name': 'search_products', 'args': {'query': '茶'}})
        last = env.step({'name': 'finish_without_purchase', 'args': {'reason': 'no_suitable_product'}})
        home.step(ToolCall('search_products', {'query': '茶'})); home.step(ToolCall('finish_without_purchase', {'reason': 'no_suitable_product'}))
        assert last.done and last.reward == home.score().value
    server.until(before)

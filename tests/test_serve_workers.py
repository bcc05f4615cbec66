"Several processes behind one address, the published ShopSim API, and what lies in environments/ for images and OpenEnv."
import json, os, re, signal, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import pytest
for extra in ('starlette', 'uvicorn', 'websockets'): pytest.importorskip(extra, reason='the server needs its extra: pip install -c constraints.txt -e ".[serve]"')
from shopping_grpo.core import Draws
from shopping_grpo.env import Message, ToolCall
from shopping_grpo.observation import BUTTONS
from shopping_grpo.policy import scripted
from shopping_grpo.rollout import rollout
from shopping_grpo.serve import marks
from shopping_grpo.serve_client import HttpEnv, ServerError, SocketEnv
from test_serve import CANARY, LEAK, Served, home, played, root, tasks, walk

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='module')
def team(root):
    with Served(root, '--workers', '2', '--sessions', '16') as s:
        yield s
        s.end()

def opened(s, **body): # over a connection of its own
    status, text = s.raw('POST', '/sessions', body)
    return json.loads(text) if status == 201 else status

def worker(session) -> int: return int(session['session'].split('-')[0])

def both(s, task=0): # one session in each worker; the operating system deals out connections
    held = {}
    while len(held) < 2:
        session = opened(s, task=task)
        if worker(session) in held: s.raw('DELETE', f"/sessions/{session['session']}", None, session['lease'])
        else: held[worker(session)] = session
    return held


@pytest.mark.parametrize('kind', [HttpEnv, SocketEnv])
def test_the_same_episodes_as_at_home(team, home, tiny, tasks, kind):
    envs = [kind(team.url) for _ in range(8)]
    for e, t in zip(envs, tasks): e.reset(t)
    for i, (e, t) in enumerate(zip(envs, tasks)):
        assert played(e, scripted('oracle', tiny), t, i) == played(home, scripted('oracle', tiny), t, i) and walk(e, t, i) == walk(home, t, i)
    for e in envs: e.close()
    team.until(0)


def test_every_request_finds_its_worker(team, home, tasks):
    "A new connection for each request, so that about half of them come to the wrong worker; each is done once, also when sent twice at once."
    for session in both(team, 3).values():
        path, words, d = f"/sessions/{session['session']}/", tasks[3].prompt.split(), Draws(0, session['session'][:1])
        home.reset(tasks[3])
        for id in range(1, 9):
            args = {'query': tasks[3].prompt[:10 + d.one(20)]}
            name = 'search_products' if id % 2 else 'back_to_search'
            body = dict(id=id, action=dict(name=name, args=args if id % 2 else {}))
            with ThreadPoolExecutor(3) as three: seen = list(three.map(lambda _: team.raw('POST', path + 'step', body, session['lease']), range(3)))
            step = home.step(ToolCall(name, args if id % 2 else {}))
            assert len({text for _, text in seen}) == 1 and json.loads(seen[0][1])['observation']['text'] == step.observation.text
            if step.done: break
        assert json.loads(team.raw('POST', path + 'state', {}, session['lease'])[1])['state'] == home.state_hash()
        assert team.raw('POST', path + 'state', {}, 'not the lease')[0] == 404
        assert json.loads(team.raw('DELETE', path[:-1], None, session['lease'])[1]) == {'closed': True}
    team.until(0)


def test_opened_once(team):
    "The same word, many times at once over many connections: one session."
    for i in range(4):
        with ThreadPoolExecutor(4) as four: seen = list(four.map(lambda _: team.raw('POST', '/sessions', dict(task=i, request=f'{i}' * 20)), range(4)))
        assert {s for s, _ in seen} == {201} and len({text for _, text in seen}) == 1
        s = json.loads(seen[0][1])
        team.raw('DELETE', f"/sessions/{s['session']}", None, s['lease'])
    team.until(0)


def test_one_capacity(team):
    held = [opened(team) for _ in range(16)]
    assert {worker(s) for s in held} == {0, 1} and team.number('sessions') == 16 == team.number('capacity')
    assert [opened(team) for _ in range(4)] == [503] * 4 and opened(team, request='f' * 20) == 503
    team.raw('DELETE', f"/sessions/{held[0]['session']}", None, held.pop(0)['lease'])
    held.append(opened(team, request='f' * 20))
    assert opened(team) == 503 and json.loads(team.raw('GET', '/health')[1])['sessions'] == 16
    for s in held: team.raw('DELETE', f"/sessions/{s['session']}", None, s['lease'])
    team.until(0)


def test_a_worker_dies(root, home, tasks):
    "Its sessions are gone, those of the other play on, and it is started again; all end together."
    with Served(root, '--workers', '2', '--sessions', '4') as s:
        held = both(s)
        def children():
            of = [p for t in Path(f'/proc/{s.process.pid}/task').iterdir() for p in (t/'children').read_text().split()]
            return [int(p) for p in of if b'spawn_main' in Path(f'/proc/{p}/cmdline').read_bytes()]
        other, = children()
        os.kill(other, signal.SIGKILL)
        end, new = time.monotonic() + 120, 0
        while new != 1:
            assert time.monotonic() < end
            time.sleep(0.2)
            assert s.raw('POST', f"/sessions/{held[1]['session']}/state", {}, held[1]['lease'])[0] == 404
            t = opened(s)
            new = worker(t)
            s.raw('DELETE', f"/sessions/{t['session']}", None, t['lease'])
        assert len(children()) == 1 and children() != [other]
        home.reset(tasks[0])
        assert json.loads(s.raw('POST', f"/sessions/{held[0]['session']}/state", {}, held[0]['lease'])[1])['state'] == home.state_hash()
        last = children()
        s.end()
        assert s.errors() == '' and not any(Path(f'/proc/{p}').exists() for p in last)
        with Served(root, port=s.port) as again: assert again.port == s.port


# --- the published API

def form(action, o): # a call in the published grammar
    if isinstance(action, Message): return action.text
    if action.name == 'search_products': return f"search[{action.args['query']}]"
    if action.name == 'finish_without_purchase': return 'finish[no_suitable_product]'
    return f'click[{next(iter(action.args.values()), BUTTONS.get(action.name))}]'

def agent(s, **body):
    status, text = s.raw('POST', '/api/shop_agent', body)
    assert status == 200 and set(json.loads(text)) == {'result'} and CANARY not in text and not LEAK.search(text)
    return json.loads(text)['result']

def test_the_published_client_plays(team, home, tiny, tasks):
    "Every request over a connection of its own, to any worker: the same pages and the published reward; nothing of the goal."
    for i, name in enumerate(('oracle', 'rule', 'random', 'buy-first', 'abstain', 'oracle')):
        row = rollout(scripted(name, tiny), home, tasks[i], 5)
        actions = [Message(x['action']['text']) if 'text' in x['action'] else ToolCall(**x['action']) for x in row['steps'] if not x['error']]
        o = home.reset(tasks[i])
        first = agent(team, action='reset', idx=i)
        assert set(first) == {'instruction', 'instruction_simple', 'goal_options', 'env_idx', 'idx', 'environment_version', 'observation_state'} and first['instruction'] == o.text and first['goal_options'] == {}
        place, said = dict(env_idx=first['env_idx'], idx=i), None
        for a in actions:
            said, step = agent(team, action='interact', response=form(a, o), **place), home.step(a)
            o = step.observation
            assert (said['instruction'], said['done'], said['observation_state']) == (o.text, step.done, json.loads(json.dumps(o.data))), (name, a)
        native = home.score_native()
        assert said['done'] and said['over'] and said['reward'] == native.value and said['reward_valid'] == native.valid and said['termination_reason'] == native.kind and said['goal'] == {} and said['reward_detail'] == json.loads(json.dumps(marks(native)))
        assert (said['purchase'] is None) == (home._state['bought'] is None)
        assert agent(team, action='release_one', **place) == {'released': True} and agent(team, action='release_one', **place) == {'released': False}
    team.until(0)

def test_the_published_client_errs(team, home, tasks):
    "Errors are results; places cannot be guessed, and nobody frees those of others."
    first = agent(team, action='reset', idx=1)
    place = dict(env_idx=first['env_idx'])
    for body in ({}, dict(action='goal'), dict(action='interact'), dict(action='interact', env_idx=0, response='click[1]'), dict(action='interact', env_idx=first['env_idx'] ^ 1 << 20, response='x'), dict(action='interact', env_idx='0'), dict(action='reset', idx=999), dict(action='reset', idx='x')):
        assert set(agent(team, **body)) == {'error'}, body
    assert agent(team, action='release_all') == {'released': 0}
    home.reset(tasks[1])
    for text in ('buy it please', None, 'click[nothing like it]'):
        said = agent(team, action='interact', response=text, **place)
        assert said['instruction'].startswith('Error: ')
    assert said['done'] and said['reward'] == 0 and not said['reward_valid'] # three refusals in a row: the published reward is invalid
    agent(team, action='release_one', **place)
    team.until(0)


# --- environments/

@pytest.mark.parametrize('name', ['shopsim', 'webshop', 'shoppingbench', 'ecomrlve'])
def test_what_lies_beside_an_environment(name):
    "Read, not built: two stages, nobody is root, nothing is fetched in the second, and what is copied exists."
    at = ROOT/'environments'/name
    docker = (at/'Dockerfile').read_text()
    build, run = re.split(r'^FROM ', docker, flags=re.M)[1:]
    assert ' AS build' in build and 'USER 10001' in run and not re.search(r'pip|curl|wget|apt-get|git ', run) and f'"--env", "{name}"' in run and 'ADD ' not in docker
    for source in re.findall(r'^COPY (?!--from)(\S+)', docker, re.M): assert source == '.' or (ROOT/source).exists()
    for source in re.findall(r'^COPY --from=build /src/(\S+)', docker, re.M): assert (ROOT/source).exists() or source == 'data/built'
    told = dict(line.split('#')[0].split(': ', 1) for line in (at/'openenv.yaml').read_text().splitlines())
    assert told['name'].strip() == name and told['spec_version'].strip() == '1' and told['app'].strip() == 'app:app'
    compile((at/'app.py').read_text(), 'app.py', 'exec')


def test_openenv_at_the_root(root, tasks, home):
    "The file beside the environment, served by uvicorn as its openenv.yaml says, and OpenEnv's own validator."
    import socket as sockets
    with sockets.create_server(('127.0.0.1', 0)) as free: port = free.getsockname()[1]
    p = subprocess.Popen([sys.executable, '-m', 'uvicorn', 'app:app', '--port', str(port), '--log-level', 'warning'], cwd=ROOT/'environments'/'shopsim',
        env=os.environ | {'SHOPPING_GRPO_ROOT': str(root), 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])})
    try:
        import http.client
        def get(path):
            c = http.client.HTTPConnection('127.0.0.1', port, timeout=5)
            c.request('GET', path)
            return json.loads(c.getresponse().read())
        end = time.monotonic() + 60
        while True:
            try: found = get('/health'); break
            except OSError: assert time.monotonic() < end and p.poll() is None; time.sleep(0.2)
        assert found == {'status': 'healthy'} and get('/metadata')['name'] == 'shopsim' and get('/about')['env'] == 'shopsim'
        client = pytest.importorskip('openenv.core.generic_client', reason='pip install -e ".[openenv]"')
        from openenv.cli._validation import validate_running_environment
        report = validate_running_environment(f'http://127.0.0.1:{port}')
        assert report['passed'], report
        with client.GenericEnvClient(base_url=f'http://127.0.0.1:{port}').sync() as env: assert env.reset(task=2).observation['text'] == home.reset(tasks[2]).text
    finally: p.terminate(); p.wait(30)

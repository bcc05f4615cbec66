"""The endpoint policy against a real HTTP server on this machine that really shops, with faults on the way; and rollouts on many threads."""
import email.utils, http.server, json, logging, os, re, signal, socket, struct, subprocess, sys, threading, time
from dataclasses import asdict
from pathlib import Path
import pytest
from shopping_grpo import endpoint
from shopping_grpo.core import Draws, EnvError, PolicyError
from shopping_grpo.endpoint import Client, Endpoint, EndpointConfig, Meter, Price, SpentError, make_policy
from shopping_grpo.env import Message, Observation
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.journal import json_line
from shopping_grpo.policy import Briefing, RandomLegal, Rule
from shopping_grpo.request import Requests
from shopping_grpo.reward import Reward, Verdict
from shopping_grpo.rollout import conversation, episode_seed, group, rollout, rollouts
from shopping_grpo.table import episode_frame

KEY = 'sk-' + 'verysecret' * 3
NOW = re.compile(r'\n\n\[(?:现在可用|possible now): (.*)\]$', re.S)
TOLD = re.compile(r'^<tool_response>\n(.*)\n</tool_response>$', re.S)


def brain(body): # the rule policy, from the conversation alone
    told = [TOLD.sub(r'\1', m['content']) for m in body['messages'] if m['role'] in ('user', 'tool')]
    policy = Rule()
    policy.begin(Briefing(NOW.sub('', told[0]), '', ()), 0)
    for text in told: action = policy.act(Observation(NOW.sub('', text), tuple(NOW.search(text)[1].split(', '))))
    return action


def written(action, dialect): # as a model would, written out here and not by the renderers
    if isinstance(action, Message): return dict(content=action.text)
    args = json.dumps(action.args, ensure_ascii=False)
    if dialect == 'openai': return dict(content=None, tool_calls=[dict(id='x', type='function', function=dict(name=action.name, arguments=args))])
    if dialect == 'hermes': return dict(content=f'<think>\nI could <tool_call>guess</tool_call>\n</think>\n\n<tool_call>\n{{"name": "{action.name}", "arguments": {args}}}\n</tool_call>')
    if dialect == 'qwen': return dict(content=f'I go on.\n\n<tool_call>\n<function={action.name}>\n' + ''.join(f'<parameter={k}>\n{v}\n</parameter>\n' for k, v in action.args.items()) + '</function>\n</tool_call>')
    return dict(content=f"Thought: I go on.\nAction: {action.name}[{next(iter(action.args.values()), '')}]")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, timeout, disable_nagle_algorithm = 'HTTP/1.1', 10, True
    def do_POST(self):
        s, body = self.server, json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        with s.lock:
            s.seen.append((dict(self.headers), body))
            fault = s.faults.pop(0) if s.faults else None
        if fault: return fault(self, body)
        self.answer(s.brain(body))
    def answer(self, message, status=200, headers={}, **more):
        usage = {'usage': dict(prompt_tokens=100, completion_tokens=10, prompt_tokens_details=dict(cached_tokens=40))} if self.server.tells_usage else {}
        self.send(json.dumps(dict(choices=[dict(index=0, message=dict(role='assistant', **message), finish_reason='stop', **more.pop('choice', {}))], **usage, **more)))
    def send(self, text, status=200, headers={}):
        data = text.encode()
        self.send_response(status)
        for k, v in ({'Content-Length': str(len(data))} | headers).items(): self.send_header(k, v)
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *_): pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64
    def handle_error(self, *_): pass # a client that left


@pytest.fixture
def server():
    s = Server(('127.0.0.1', 0), Handler)
    s.lock, s.seen, s.faults, s.tells_usage, s.release = threading.Lock(), [], [], True, threading.Event()
    s.brain = lambda body: written(brain(body), body['model'])
    s.url = f'http://127.0.0.1:{s.server_port}/v1'
    threading.Thread(target=s.serve_forever, kwargs=dict(poll_interval=0.02), daemon=True).start()
    yield s
    s.release.set(); s.shutdown(); s.server_close()


@pytest.fixture(scope='module')
def world(tiny, tiny_engine): return lambda: ShopSim(tiny, tiny_engine)


@pytest.fixture(scope='module')
def tasks(tiny): return Requests(tiny, seed=1).tasks('train', 20)


def make(server, dialect='openai', meter=None, naps=None, prices=endpoint.PRICES, **config):
    return Endpoint(EndpointConfig(dialect, server.url, dialect=dialect, **config), meter, prices, sleep=(naps if naps is not None else []).append)

def played(row): return row['outcome'], row['reward'], [(s['action'], s['observation'], s['error']) for s in row['steps']]
def timeless(rows): return sorted(({k: v for k, v in r.items() if k != 'timing'} for r in rows), key=lambda r: r['id'])


# the same shopping in every dialect

@pytest.mark.parametrize('dialect', ['openai', 'hermes', 'qwen', 'action'])
def test_same_as_the_rule_policy(dialect, server, world, tasks):
    "20 tasks, over HTTP and in the process: the same actions, pages, outcomes and rewards; and a conversation that is one."
    policy, env = make(server, dialect), world()
    for t in tasks:
        row = rollout(policy, env, t)
        assert played(row) == played(rollout(Rule(), env, t))
        m = row['messages']
        assert [x['role'] for x in m] == ['system', 'user'] + ['assistant', 'tool'] * (row['n_steps'] - 1) + ['assistant']
        assert all(a['tool_calls'][0]['id'] == b['tool_call_id'] for a, b in zip(m[2:-1:2], m[3::2]))
        assert [x['tool_calls'][0]['function']['name'] for x in m[2::2]] == [s['action']['name'] for s in row['steps']]
        assert row['usage'] == dict(prompt=100 * row['n_steps'], completion=10 * row['n_steps'], cached=40 * row['n_steps'], cost=None, requests=row['n_steps'], retries=0, extra_calls=0)
        assert all(('raw' in s) == (dialect != 'openai') for s in row['steps'])
    if dialect == 'hermes': assert not any('guess' in m['content'] for _, b in server.seen for m in b['messages']) and m[2]['reasoning_content']
    assert ('tools' in server.seen[0][1]) == (dialect == 'openai') and all('tool_calls' not in m for _, b in server.seen for m in b['messages'] if dialect != 'openai')


def test_eight_workers_equal_one(server, world, tasks):
    "24 episodes on 8 threads and on 1: equal rows but for the clock, and a seed of its own for each turn of each episode."
    pairs = [(t, a) for t in tasks[:12] for a in (0, 1)]
    one, eight = (list(rollouts(lambda: make(server, 'hermes'), world, pairs, seed=7, workers=n)) for n in (1, 8))
    assert timeless(one) == timeless(eight) and len(one) == 24 and not any('error' in r for r in one)
    assert [r['id'] for r in one] == [rollout(make(server, 'hermes'), world(), t, episode_seed(7, t, a), a)['id'] for t, a in pairs[:3]] + [r['id'] for r in one[3:]]
    asked = sorted(b['seed'] for _, b in server.seen)
    assert len(set(asked)) == sum(r['n_steps'] for r in one)


def test_a_group_is_the_same_alone_and_among_others(world, tasks):
    alone = group(RandomLegal(), world(), tasks[0], 4, seed=9)
    among = [r for r in rollouts(RandomLegal, world, [(t, a) for t in tasks[:3] for a in range(4)], seed=9, workers=3) if r['task_key'] == tasks[0].key]
    assert timeless(alone) == timeless(among) and len({r['seed'] for r in alone}) == 4


# faults on the way

def status(code, headers={}, text='{"error": {"message": "no"}}'): return lambda h, body: h.send(text, code, headers)
def hang(h, body): h.server.release.wait(10); h.close_connection = True
def plain_text(text): return lambda h, body: h.send(text)
def cut(h, body): # promises more than it sends
    h.send_response(200); h.send_header('Content-Length', '5000'); h.end_headers()
    h.wfile.write(b'{"choices": [{"mess'); h.wfile.flush(); h.close_connection = True
def reset(h, body): # RST in the middle of the body
    h.send_response(200); h.send_header('Content-Length', '5000'); h.end_headers()
    h.wfile.write(b'{"choices": [{"mess'); h.wfile.flush()
    h.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); h.close_connection = True
    h.connection.close()
def drip(h, body): # a byte now and then, for ever
    h.send_response(200); h.send_header('Content-Length', '5000'); h.end_headers()
    while not h.server.release.wait(0.05): h.wfile.write(b' '); h.wfile.flush()

TROUBLE = {'429': [status(429, {'Retry-After': '2'})], '500 twice': [status(500)] * 2, '408': [status(408)], '409': [status(409)], '425': [status(425)], '503 as HTML': [status(503, text='<html>busy</html>')],
    'hang': [hang], 'drip': [drip], 'reset': [reset] * 2, 'cut short': [cut] * 2, 'invalid JSON': [plain_text('{"choices": [')], 'no choices': [plain_text('{"choices": []}')], 'wrong schema': [plain_text('{"choices": {"message": 1}}')],
    'a list': [plain_text('[1]')], 'empty': [plain_text('')], 'error inside 200': [plain_text('{"error": {"code": 502, "message": "upstream"}}')], 'deep': [plain_text('[' * 100_000)], 'no UTF-8': [lambda h, body: h.send('\udcff'.encode('utf-8', 'surrogatepass').decode('latin1'))]}

@pytest.mark.parametrize('faults', TROUBLE.values(), ids=TROUBLE)
def test_trouble_that_passes(faults, server, world, tasks, caplog):
    "The episode is what it would have been; the retries are counted, logged and left out of the time of the model."
    naps = []
    policy, env = make(server, naps=naps, timeout=0.3), world()
    server.faults[:] = [None] + faults
    row = rollout(policy, env, tasks[0])
    assert played(row) == played(rollout(Rule(), env, tasks[0])) and not server.faults
    assert len(naps) == row['usage']['retries'] == len(caplog.records) >= 1 and row['usage']['requests'] == row['n_steps'] and row['timing']['wait'] >= 0
    assert row['messages'] == rollout(make(server), env, tasks[0])['messages']


@pytest.mark.parametrize('faults', [f for k, f in TROUBLE.items() if k not in ('hang', 'drip')], ids=[k for k in TROUBLE if k not in ('hang', 'drip')])
def test_trouble_that_stays(faults, server, world, tasks):
    "An invalid episode with its steps and a line of why; never a zero."
    server.faults[:] = [None] + faults[:1] * 20
    row = rollout(make(server, tries=3), world(), tasks[0])
    assert row['outcome'] == 'error' and row['reward']['value'] is None and not row['reward']['valid'] and row['n_steps'] == 1
    assert row['error']['type'] == 'Fault' and '\n' not in row['error']['message'] and row['usage']['retries'] == 2


@pytest.mark.parametrize('code', [302, 400, 401, 403, 404, 422])
def test_wrong_configuration_is_said_at_once(code, server, world, tasks):
    server.faults[:] = [status(code, {'Location': server.url + '/elsewhere'})] * 5
    row = rollout(make(server), world(), tasks[0])
    assert row['outcome'] == 'error' and str(code) in row['error']['message'] and len(server.seen) == 1


def test_nobody_there(world, tasks):
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    row = rollout(Endpoint(EndpointConfig('m', f'http://127.0.0.1:{port}/v1', tries=2), sleep=lambda s: None), world(), tasks[0])
    assert row['outcome'] == 'error' and 'ConnectionRefusedError' in row['error']['message']


@pytest.mark.parametrize('code, text', [(400, '{"error": {"message": "too long", "code": "context_length_exceeded"}}'), (400, '{"message": "This model\'s maximum context length is 4096 tokens. However, you requested 5000 tokens"}'),
    (400, '{"message": "The input (5000 tokens) is longer than the model\'s context length (4096 tokens)."}'), (422, '{"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}'),
    (400, '{"error": {"type": "exceed_context_size_error"}}'), (400, '{"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}')])
def test_a_full_context_is_a_limit_of_the_model(code, text, server, world, tasks):
    server.faults[:] = [None, status(code, text=text)]
    row = rollout(make(server), world(), tasks[0])
    assert row['outcome'] == 'max_tokens' and row['reward']['valid'] and row['reward']['value'] < 0 and row['n_steps'] == 1 and 'error' not in row


def test_waits(server):
    "Retry-After in seconds, milliseconds and as a date is kept; too long a wait is not sat out; else the waits double within a jitter that a seed fixes."
    def naps(*faults, **config):
        out = []
        server.faults[:] = list(faults)
        try: Client(EndpointConfig('openai', server.url, **config), out.append).ask(dict(messages=[dict(role='user', content='x\n\n[possible now: search_products]')], model='openai'), Draws(4))
        except PolicyError: pass
        return out
    later = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert naps(status(429, {'Retry-After': '7'})) == [7] and naps(status(503, {'Retry-After-Ms': '2500'})) == [2.5]
    assert 25 < naps(status(429, {'Retry-After': later}))[0] <= 30
    assert naps(status(429, {'Retry-After': '3600'})) == [] and naps(status(429, {'Retry-After': 'soon'}))[0] <= 0.5
    doubling = naps(*[status(500)] * 5, backoff=1)
    assert len(doubling) == 4 and all(2**i / 2 <= x < 2**i for i, x in enumerate(doubling)) and doubling == naps(*[status(500)] * 5, backoff=1)


def test_an_idle_connection_that_was_closed_is_no_retry(server, world, tasks):
    "Servers close idle connections; that is met with a new one and not with a wait."
    def closing(h, body): h.answer(h.server.brain(body)); h.close_connection = True
    server.faults[:] = [closing] * 40
    row = rollout(make(server), world(), tasks[0])
    assert row['success'] == rollout(Rule(), world(), tasks[0])['success'] and row['usage']['retries'] == 0


# what the model does is the model's

def test_a_broken_model_is_a_valid_negative(server, world, tasks):
    "200 odd messages: never an error, always a line that the store can write and a table of fixed types."
    odd = ['', 'I would buy the red one.', '<think>', '\ud83d', 'NaN'] + [dict(tool_calls=x) for x in ('x', [None], [{'function': {'name': 5, 'arguments': '{"query": 1e999}'}}], [{'function': {'name': 'search_products', 'arguments': '{"query": "a'}}], [{'id': 3, 'function': {'name': 'buy now!', 'arguments': {'a': [1]}}}])]
    rows = []
    for i in range(200):
        d = Draws(5, i)
        def answer(body, d=d): x = d.pick(odd); return dict(content=x) if isinstance(x, str) else dict(content=None, **x)
        server.brain = answer
        rows.append(rollout(make(server, d.pick(['openai', 'hermes', 'qwen', 'action'])), world(), tasks[i % 20]))
    assert {r['outcome'] for r in rows} == {'stopped'} and all(r['reward']['valid'] and not r['success'] for r in rows)
    assert all(json.loads(json_line(r, 'row')) for r in rows) and len(episode_frame(rows)) == 200
    assert {len(r['steps']) for r in rows} == {1, 2, 3}


def test_only_the_first_of_several_calls_is_done(server, world, tasks):
    def twice(body): m = written(brain(body), 'openai'); return dict(content='', tool_calls=m['tool_calls'] * 3)
    server.brain = twice
    row = rollout(make(server), world(), tasks[0])
    assert played(row) == played(rollout(Rule(), world(), tasks[0])) and row['usage']['extra_calls'] == 2 * row['n_steps'] and all(s['calls'] == 3 for s in row['steps'])
    assert all(len(m.get('tool_calls', [0])) == 1 for _, b in server.seen for m in b['messages'])


def test_tokens_and_logprobs_are_kept(server, world, tasks):
    def fault(h, body):
        assert body['logprobs'] and body['top_logprobs'] == 1 and body['return_token_ids'] and body['top_k'] == 20
        content = [dict(token='a', logprob=-0.25, top_logprobs=[dict(token='b', logprob=-2)]), dict(token='c', logprob=-0.5, top_logprobs=[])]
        h.answer(h.server.brain(body), prompt_token_ids=[1, 2, 3], choice=dict(token_ids=[4, 5], logprobs=dict(content=content)))
    server.faults[:] = [fault] * 40
    row = rollout(make(server, top_logprobs=1, token_ids=True, extra=dict(top_k=20)), world(), tasks[0])
    assert all(s['tokens'] == dict(prompt_ids=[1, 2, 3], ids=[4, 5], logprobs=[-0.25, -0.5], tokens=['a', 'c'], top=[[['b', -2]], []]) for s in row['steps'])


def test_requests_carry_the_configuration(server, world, tasks):
    rollout(make(server, temperature=0.3, top_p=0.9, max_tokens=77, stop=('END',), tool_choice='required'), world(), tasks[0])
    body = server.seen[-1][1]
    assert {k: body[k] for k in ('temperature', 'top_p', 'max_tokens', 'stop', 'tool_choice')} == dict(temperature=0.3, top_p=0.9, max_tokens=77, stop=['END'], tool_choice='required')
    assert len(body['tools']) == len(world().tools) + (tasks[0].scenario in ('multi', 'both')) and 'logprobs' not in body
    rollout(make(server, temperature=None, max_tokens=None, seeded=False), world(), tasks[0])
    assert not {'temperature', 'top_p', 'max_tokens', 'stop', 'seed'} & server.seen[-1][1].keys()


# the key

def test_the_key_is_sent_and_written_nowhere(server, world, tasks, caplog, capfd, monkeypatch):
    "A server that repeats the key in every error, in logs at the lowest level: it is in no row, log line, repr, config or message."
    monkeypatch.setenv('SHOP_TEST_KEY', KEY)
    caplog.set_level(logging.DEBUG)
    echo = lambda code: lambda h, body: h.send(json.dumps({'error': {'message': f"bad key {h.headers['Authorization']} {'x' * 150}{KEY}"}}), code)
    policy, rows = make(server, key_env='SHOP_TEST_KEY', tries=2), []
    for code in (400, 401, 403, 404, 429, 500):
        server.faults[:] = [None, echo(code), echo(code)]
        rows.append(rollout(policy, world(), tasks[0]))
    server.faults.clear()
    rows.append(rollout(policy, world(), tasks[0]))
    assert all(h['Authorization'] == f'Bearer {KEY}' for h, _ in server.seen) and [r['outcome'] == 'error' for r in rows] == [True] * 6 + [False]
    everything = json.dumps(rows) + caplog.text + repr(policy) + repr(policy.config) + repr(vars(policy)) + repr(vars(policy.client)) + json.dumps(asdict(policy.config)) + ''.join(capfd.readouterr())
    assert KEY[:8] not in everything and 'SHOP_TEST_KEY' in everything and '***' in json.dumps(rows)
    assert not any('bad key' in r['error']['message'] for r in rows[1:3]) # of a refused key nothing is repeated


def test_a_redirect_does_not_carry_the_key_away(server, world, tasks, monkeypatch):
    monkeypatch.setenv('SHOP_TEST_KEY', KEY)
    other = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    other.lock, other.seen, other.faults = threading.Lock(), [], []
    server.faults[:] = [status(307, {'Location': f'http://127.0.0.1:{other.server_port}/v1/chat/completions'})]
    row = rollout(make(server, key_env='SHOP_TEST_KEY'), world(), tasks[0])
    other.shutdown(); other.server_close()
    assert row['outcome'] == 'error' and not other.seen


@pytest.mark.parametrize('value, message', [(None, 'not set'), ('', 'not set'), ('se cret', 'no key'), ('se\ncret', 'no key'), ('ключ', 'no key')])
def test_a_missing_or_broken_key(value, message, monkeypatch):
    "Said when the policy is made, by the name of the variable and without its value."
    monkeypatch.delenv('SHOP_TEST_KEY', raising=False)
    if value is not None: monkeypatch.setenv('SHOP_TEST_KEY', value)
    with pytest.raises(PolicyError, match=message) as e: Endpoint(EndpointConfig('m', key_env='SHOP_TEST_KEY'))
    assert not value or value not in str(e.value)


@pytest.mark.parametrize('config', [dict(key_env=KEY), dict(base_url=f'http://u:{KEY}@h/v1'), dict(base_url=f'http://h/v1?api-key={KEY}'), dict(base_url='ftp://h'), dict(base_url='h:80/v1'), dict(tries=0), dict(timeout=0), dict(dialect='x')], ids=lambda c: next(iter(c)))
def test_configuration_is_checked(config):
    with pytest.raises(PolicyError) as e: EndpointConfig('m', **config)
    assert KEY not in str(e.value)


# money and limits

def test_money(server, world, tasks):
    prices = {'openai': Price(2.0, 0.5, 10.0, '2026-01-01')}
    row = rollout(make(server, prices=prices), world(), tasks[0])
    assert row['usage']['cost'] == pytest.approx(row['n_steps'] * (60 * 2 + 40 * 0.5 + 10 * 10) / 1e6, abs=1e-9)
    server.tells_usage = False
    assert rollout(make(server, prices=prices), world(), tasks[0])['usage'] | dict(requests=0) == dict(prompt=None, completion=None, cached=None, cost=None, requests=0, retries=0, extra_calls=0)


@pytest.mark.parametrize('workers', [1, 4])
def test_a_run_stops_at_its_cap_and_goes_on(workers, server, world, tasks):
    "The cap is passed by at most a request of each worker, nothing paid is lost from the rows, and a raised cap takes up where it stopped."
    pairs, meter = [(t, 0) for t in tasks], Meter(max_tokens=5000)
    rows = list(rollouts(lambda: make(server, meter=meter), world, pairs, workers=workers, spent=meter.spent))
    broken = [r for r in rows if r['outcome'] == 'error']
    paid = sum(r['usage']['prompt'] + r['usage']['completion'] for r in rows)
    assert 1 <= len(broken) <= workers and len(rows) < 20 and {r['error']['type'] for r in broken} == {'SpentError'}
    assert paid == meter.tokens == 110 * len(server.seen) and 5000 <= paid < 5000 + 110 * workers
    done = {r['task_key'] for r in rows if r['outcome'] != 'error'}
    again = Meter(max_tokens=10**6, used=dict(prompt=paid))
    rest = list(rollouts(lambda: make(server, meter=again), world, [p for p in pairs if p[0].key not in done], workers=workers, spent=again.spent))
    assert not again.spent() and done | {r['task_key'] for r in rest} == {t.key for t in tasks} and not any('error' in r for r in rest)


def test_caps_on_money(server, world, tasks):
    meter = Meter(max_cost=0.001)
    with pytest.raises(PolicyError, match='has no price'): make(server, meter=meter)
    rows = list(rollouts(lambda: make(server, meter=meter, prices={'openai': Price(2, 2, 2, '2026-01-01')}), world, [(t, 0) for t in tasks], spent=meter.spent))
    assert rows[-1]['error']['type'] == 'SpentError' and 0.001 <= sum(r['usage']['cost'] for r in rows) < 0.001 + 0.00023
    server.tells_usage = False
    blind = Meter(max_tokens=10**6)
    rows = list(rollouts(lambda: make(server, meter=blind), world, [(t, 0) for t in tasks], spent=blind.spent))
    assert len(rows) == 1 and 'reports no usage' in rows[0]['error']['message'] and len(server.seen) > 1


@pytest.mark.parametrize('limits, outcome', [(dict(max_tokens=300), 'max_tokens'), (dict(max_cost=0.0005), 'max_tokens'), (dict(max_turns=3), 'max_turns'), (dict(max_seconds=0), 'max_time')])
def test_limits_of_an_episode(limits, outcome, server, world, tasks):
    "A limit ends the episode after the turn that reached it, with a valid result."
    row = rollout(make(server, prices={'openai': Price(2, 2, 2, '2026-01-01')}), world(), tasks[0], **limits)
    assert row['outcome'] == outcome and row['n_steps'] == (1 if outcome == 'max_time' else 3) and row['reward']['valid'] and not row['success']


def test_waiting_for_a_busy_server_is_no_time_of_the_model(server, world, tasks):
    "An episode with a limit of half a second survives a second and more of a hanging server."
    server.faults[:] = [hang, hang]
    row = rollout(make(server, timeout=0.6), world(), tasks[0], max_seconds=0.5)
    assert row['outcome'] != 'max_time' and row['timing']['wait'] > 1 and row['usage']['retries'] == 2


# many at once

def test_one_broken_episode_stops_no_other(world, tasks):
    "A policy that raises for one task and an environment that raises for another: two errors, the rest as ever."
    class Picky(Rule):
        def begin(self, briefing, seed):
            if briefing.prompt == tasks[3].prompt: raise ValueError('not this one')
            super().begin(briefing, seed)
    class Faulty(ShopSim):
        def reset(self, task, seed=0):
            if task.key == tasks[5].key: raise EnvError('the disk is gone')
            return super().reset(task, seed)
    def env(): e = world(); return Faulty(e.catalog, e.engine)
    rows = {r['task_key']: r for r in rollouts(Picky, env, [(t, 0) for t in tasks], workers=4)}
    assert len(rows) == 20 and {k for k, r in rows.items() if 'error' in r} == {tasks[3].key, tasks[5].key}
    assert all(played(rows[t.key]) == played(rollout(Rule(), world(), t)) for t in tasks if 'error' not in rows[t.key])


def test_both_scores_are_kept(world, tasks):
    "The published score stands beside ours; a part that its grader could not decide has no number."
    class Both(ShopSim):
        def score_native(self): return Reward(0.25, (Verdict('brand', True, 0.5), Verdict('colour', None)), kind='half')
    e = world()
    row = rollout(Rule(), Both(e.catalog, e.engine), tasks[0])
    assert row['native'] == dict(value=0.25, valid=True, kind='half', parts=dict(brand=0.5, colour=None), gates={})
    frame = episode_frame([json.loads(json_line(row, 'row'))])
    assert frame.native_value[0] == 0.25 and frame.reward[0] == row['reward']['value']


def test_a_worker_that_cannot_begin_is_heard_of(world, tasks):
    "The others do its work, and then its error is raised; the same for a list of tasks that breaks."
    made, got = iter([True, False, True]), []
    def env():
        if not next(made): raise EnvError('no slot left')
        return world()
    with pytest.raises(EnvError, match='no slot left'):
        for r in rollouts(Rule, env, ((t, 0) for t in tasks), workers=3): got.append(r)
    assert len(got) == 20
    def torn(): yield tasks[0], 0; raise ValueError('torn file')
    with pytest.raises(ValueError, match='torn file'): list(rollouts(Rule, world, torn(), workers=2))


def test_leaving_early_ends_the_workers(server, world, tasks):
    "The pairs are read as needed, and a caller that leaves gives up what is under way."
    taken, before = [], threading.active_count()
    def endless():
        i = 0
        while True: taken.append(i); yield tasks[i % 20], i; i += 1
    many = rollouts(RandomLegal, world, endless(), workers=3)
    for _ in range(5): next(many)
    many.close()
    assert threading.active_count() <= before and 5 <= len(taken) <= 5 + 4 * 3


def test_what_is_under_way_is_given_up_at_its_next_turn(world, tasks):
    acted, inside, go = [], threading.Event(), threading.Event()
    class Slow(Rule):
        def act(self, observation):
            if self.prompt == tasks[0].prompt: return Message('')
            acted.append(1); inside.set(); go.wait(10)
            return super().act(observation)
    many = rollouts(Slow, world, [(t, 0) for t in tasks[:5]])
    next(many); inside.wait(10)
    workers = [t for t in threading.enumerate() if t.daemon and t.name.endswith('(_guarded)')]
    many.close(); go.set()
    for t in workers: t.join(10)
    assert workers and acted == [1] and not any(t.is_alive() for t in workers)


def test_ctrl_c_leaves_whole_lines(tmp_path):
    "A real SIGINT to a process that writes rows of 4 workers: it ends, and each line is an episode."
    script = tmp_path/'run.py'
    script.write_text('''
import sys, time
from shopping_grpo.env import Environment, Message, Outcome, ToolCall, tool
from shopping_grpo.journal import Journal, json_line
from shopping_grpo.reward import Reward
from shopping_grpo.rollout import rollouts
from shopping_grpo.task import Goal, Task
class Wait(Environment):
    name = 'wait'
    def _begin(self, task, seed): return {}
    def _plain_state(self): return {}
    @tool
    def nap(self): "Wait."; time.sleep(.01); return 'z' * 50_000
    def score(self): return Reward(0.0, kind='stopped')
class Sleeper:
    name = 'sleeper'
    def begin(self, briefing, seed): self.n = 0
    def act(self, observation): self.n += 1; return ToolCall('nap') if self.n < 4 else Message('')
out = Journal(sys.argv[1]); out.open()
print('ready', flush=True)
for row in rollouts(Sleeper, Wait, ((Task('wait', f'wait {i}', Goal((), (), '')), 0) for i in range(10**6)), workers=4): out.append(json_line(row, 'row'))
''')
    def interruptible(): signal.signal(signal.SIGINT, signal.default_int_handler) # a battery started in the background hands down that it is ignored
    for delay in (0.2, 0.7):
        path = tmp_path/f'{delay}.jsonl'
        p = subprocess.Popen([sys.executable, script, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1], env=os.environ | {'PYTHONPATH': str(Path(__file__).parents[1])}, preexec_fn=interruptible)
        assert p.stdout.readline() == 'ready\n'
        time.sleep(delay)
        p.send_signal(signal.SIGINT)
        _, err = p.communicate(timeout=30)
        data = path.read_bytes()
        assert 'KeyboardInterrupt' in err and p.returncode and (not data or data.endswith(b'\n'))
        rows = [json.loads(line) for line in data.splitlines()]
        assert len({r['task_key'] for r in rows}) == len(rows) and all(r['n_steps'] == 4 and r['outcome'] == 'stopped' for r in rows)
    assert rows


# by name, and for training

def test_make_policy(tiny):
    p = make_policy('endpoint:org/qwen3:4b@http://127.0.0.1:9/v1', dialect='qwen', max_tokens=9)
    assert (p.config.model, p.config.base_url, p.config.dialect, p.config.max_tokens) == ('org/qwen3:4b', 'http://127.0.0.1:9/v1', 'qwen', 9)
    assert make_policy('endpoint:m').config.base_url == EndpointConfig.base_url and make_policy('oracle', tiny).name == 'oracle'
    with pytest.raises(PolicyError, match='is unknown'): make_policy('genius')


def test_conversations_of_scripted_teachers(world, tasks):
    row = rollout(Rule(), world(), tasks[0])
    talk = conversation(row, 'You shop.')
    assert [m['role'] for m in talk] == ['system', 'user'] + ['assistant', 'tool'] * row['n_steps'] and talk[1]['content'] == tasks[0].prompt
    assert [json.loads(m['tool_calls'][0]['function']['arguments']) for m in talk if m['role'] == 'assistant'] == [s['action']['args'] for s in row['steps']]

"""The environment server against the shape of the published one, in one run: the same episodes of ShopSim over 20,000 products, the same client, the same environment and search engine behind both.

    python benchmarks/bench_serve.py                       # needs Flask: pip install flask==3.1.3
    python benchmarks/bench_serve.py --clients 4 --episodes 20

The published shape: one process of Flask's own server with threads, one route, one lock around everything, one catalogue for all places. It is a model of our own, made from a description. `fts5` adds the published search engine's work
(SQLite FTS5, seven weighted columns, bigrams joined by OR) to each search of it; its hits are thrown away, so that the episodes stay the same. Two speeds are printed: by the clock, in which the client takes its part of the machine,
and by the processor time that the servers used, which a busy machine does not change much. The bar is for the latter.
"""
import argparse, json, os, re, socket, sqlite3, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from machine import machine, table
from shopping_grpo.catalog import Catalog
from shopping_grpo.core import folder
from shopping_grpo.env import ToolCall
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.generate import generate
from shopping_grpo.policy import scripted
from shopping_grpo.request import Requests
from shopping_grpo.rollout import rollout
from shopping_grpo.search import Tantivy, build_index, tokens
from shopping_grpo.serve import Server, _seen, marks

CLOCK = os.sysconf('SC_CLK_TCK')


def world(size):
    where = folder('data')/'built'/size
    catalog, _ = generate(where/'catalog', size)
    if not (where/'index'/'engine.json').exists(): build_index(where/'index', catalog)
    return ShopSim(catalog, Tantivy(where/'index', catalog)), Requests(catalog, seed=5).tasks('train', 200)


class Fts5:
    "The work of the published search: title, brand, category, model, attributes, options and bullets in an FTS5 table, pre-tokenised."
    WEIGHTS = (3.0, 2.0, 2.0, 2.5, 1.5, 1.2, 0.8)
    def __init__(self, catalog):
        self.db = sqlite3.connect(':memory:', check_same_thread=False)
        self.db.execute('create virtual table p using fts5(title, brand, category, model, attributes, options, bullets)')
        words = lambda *texts: ' '.join(tokens(' '.join(texts)))
        row = lambda p: (words(p.title), words(p.brand or p.shop), words(*p.category), words(p.model), words(*(x for key, value, _ in p.attributes for x in (key, value))), words(*{x for v in p.variants for x in v.values}), words(*p.features))
        self.db.executemany('insert into p values (?, ?, ?, ?, ?, ?, ?)', (row(catalog.at(i)) for i in range(len(catalog))))

    def work(self, query):
        terms = ' OR '.join(f'"{w}"' for w in dict.fromkeys(tokens(query)))
        return self.db.execute(f"select rowid from p where p match ? order by bm25(p, {', '.join(map(str, self.WEIGHTS))}) limit 150", (terms,)).fetchall() if terms else []


def published(size, fts5):
    "The server of the published shape."
    import logging
    from flask import Flask, request
    logging.getLogger('werkzeug').setLevel(logging.ERROR)
    env, tasks = world(size)
    places, lock, app, search = {}, threading.Lock(), Flask('published'), Fts5(env.catalog) if fts5 else None
    import copy
    def act(body):
        if body['action'] == 'reset':
            n = next(i for i in range(1000) if i not in places)
            e = places[n] = copy.copy(env)
            o = e.reset(tasks[body['idx']])
            return dict(instruction=o.text, env_idx=n, idx=body['idx'], observation_state=o.data)
        if body['action'] == 'release_one': return dict(released=places.pop(body['env_idx'], None) is not None)
        e, call = places[body['env_idx']], ToolCall(**body['response'])
        if search and call.name == 'search_products': search.work(call.args['query'])
        s = e.step(call)
        return dict(done=s.done, instruction=s.observation.text, observation_state=s.observation.data, reward=e.score_native().value if s.done else 0, reward_detail=marks(e.score()) if s.done else {})
    @app.post('/api/shop_agent')
    def shop_agent():
        with lock: return dict(result=act(request.get_json()))
    with socket.create_server(('127.0.0.1', 0)) as s: port = s.getsockname()[1]
    print(port, flush=True)
    app.run('127.0.0.1', port, threaded=True)


def ours(size, workers):
    "The server of this repository."
    from shopping_grpo.serve_http import listen, serve
    from shopping_grpo.serve_workers import listen_shared, serve_team
    desk = desk_of(size)
    if workers == 1:
        sock = listen('127.0.0.1', 0)
        print(sock.getsockname()[1], flush=True)
        return serve(desk, sock)
    sock = listen_shared('127.0.0.1', 0)
    serve_team(desk, sock, workers, partial(desk_of, size), ready=lambda: print(sock.getsockname()[1], flush=True))

def desk_of(size): return Server(*world(size))


class Wire:
    "A client that costs little: bytes in, bytes out, the connection kept where the server keeps it."
    def __init__(self, port): self.port, self.sock = port, None
    def ask(self, path, body, lease=''):
        data = json.dumps(body).encode()
        head = f'POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n' + (f'Authorization: Bearer {lease}\r\n' if lease else '') + '\r\n'
        if self.sock is None: self.sock = socket.create_connection(('127.0.0.1', self.port)); self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(head.encode() + data)
        got = b''
        while (cut := got.find(b'\r\n\r\n')) < 0: got += self._more()
        head, got = got[:cut].lower(), got[cut + 4:]
        length = int(re.search(rb'content-length: *(\d+)', head)[1])
        while len(got) < length: got += self._more()
        if b'connection: close' in head or head.startswith(b'http/1.0'): self.sock.close(); self.sock = None
        if not re.match(rb'http/1\.\d 20[01]', head): raise RuntimeError(got[:300])
        return json.loads(got)
    def _more(self):
        if not (part := self.sock.recv(1 << 16)): raise ConnectionError('closed')
        return part


def play_ours(port, plans, seen):
    wire = Wire(port)
    s = wire.ask('/sessions', dict(task=0))
    path, id = f"/sessions/{s['session']}/", 0
    for i, (n, actions) in plans:
        id += 1
        texts = [wire.ask(path + 'reset', dict(id=id, task=n), s['lease'])['observation']['text']]
        for a in actions: id += 1; texts.append(wire.ask(path + 'step', dict(id=id, action=a), s['lease'])['observation']['text'])
        seen[i] = texts, wire.ask(path + 'score', {}, s['lease'])['reward']['value']

def play_published(port, plans, seen):
    wire = Wire(port)
    for i, (n, actions) in plans:
        first = wire.ask('/api/shop_agent', dict(action='reset', idx=n))['result']
        texts = [first['instruction']]
        for a in actions: last = wire.ask('/api/shop_agent', dict(action='interact', env_idx=first['env_idx'], response=a))['result']; texts.append(last['instruction'])
        wire.ask('/api/shop_agent', dict(action='release_one', env_idx=first['env_idx']))
        seen[i] = texts, last['reward_detail']['value']


def family(pid): # a process and its children
    return [pid] + [p for t in Path(f'/proc/{pid}/task').iterdir() for c in (t/'children').read_text().split() for p in family(c)]

def used(pid): # processor seconds
    return sum(int(x) for p in family(pid) for x in Path(f'/proc/{p}/stat').read_text().rsplit(')', 1)[1].split()[11:13]) / CLOCK

def resident(pid): # MB; pages that are shared count in parts
    return sum(int(re.search(r'Pss:\s+(\d+)', Path(f'/proc/{p}/smaps_rollup').read_text())[1]) for p in family(pid)) / 1024


def measure(kind, play, size, plans, clients):
    "Seconds by the clock, processor seconds of the server, MB, what was seen."
    p = subprocess.Popen([sys.executable, __file__, '--serve', kind, '--size', size], stdout=subprocess.PIPE, text=True, env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)})
    try:
        port, seen, todo = int(p.stdout.readline()), {}, list(enumerate(plans))
        time.sleep(1)
        play(port, todo[:clients], {}) # warm: connections, caches of a few pages
        start, before = time.perf_counter(), used(p.pid)
        with ThreadPoolExecutor(clients) as threads: list(threads.map(lambda i: play(port, todo[i::clients], seen), range(clients)))
        return time.perf_counter() - start, used(p.pid) - before, resident(p.pid), [seen[i] for i in range(len(plans))]
    finally: p.terminate(); p.wait(30)


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument('--size', default='small')
    ask.add_argument('--clients', type=int, default=16)
    ask.add_argument('--episodes', type=int, default=160)
    ask.add_argument('--only', default='', help='names of servers, with commas')
    ask.add_argument('--serve', help='used by this script itself')
    a = ask.parse_args()
    if a.serve: return published(a.size, a.serve == 'fts5') if a.serve in ('flask', 'fts5') else ours(a.size, int(a.serve.split('-')[1]))
    print(machine(), f'{a.clients} clients', '\n')
    env, tasks = world(a.size)
    plans, home = [], []
    for i in range(a.episodes):
        row = rollout(scripted('rule', env.catalog), env, tasks[n := i % len(tasks)])
        plans.append((n, [s['action'] for s in row['steps']]))
        home.append(([row['prompt']] + [s['observation'] for s in row['steps']], row['reward']['value']))
    requests, rows, base = sum(len(x) + 2 for _, x in plans), [], {}
    for kind, play in (('flask', play_published), ('fts5', play_published), ('ours-1', play_ours), ('ours-2', play_ours)):
        if a.only and kind not in a.only.split(','): continue
        wall, cpu, mb, seen = measure(kind, play, a.size, plans, a.clients)
        assert seen == home, kind
        base[kind] = wall, cpu
        ratio = ' '.join(f'{base[b][0] / wall:.1f} x / {base[b][1] / cpu:.1f} x {b};' for b in ('flask', 'fts5') if b in base and kind.startswith('ours'))
        rows.append((kind, f'{requests / wall:,.0f} requests/s, {len(plans) / wall:,.1f} episodes/s; {1e3 * cpu / requests:.2f} ms of processor a request = {requests / cpu:,.0f}/s a core; {mb:.0f} MB', ratio, None))
        print('measured', kind, flush=True)
    table(rows)


if __name__ == '__main__': main()

"The same episodes in other people's frameworks, with the real libraries: same observations, same grade, same end state. A test is skipped where its library is missing."
import asyncio, contextlib, copy, json, os, subprocess, sys, threading
from pathlib import Path
import pytest
from shopping_grpo.env import EnvError, Message, Outcome, ToolCall, load_env
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.interop import Game, choose, read_text, write_text
from shopping_grpo.policy import scripted
from shopping_grpo.request import Requests
from shopping_grpo.rollout import episode_seed, rollout
from shopping_grpo.serve import Server, marks
from shopping_grpo.task import load_tasks

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ['shopsim', 'webshop', 'shoppingbench', 'ecomrlve']


def need(*modules):
    for m in modules: pytest.importorskip(m, reason=f'{m} is not installed; see the extras in pyproject.toml')


class World:
    "Scripted episodes, as they were played at home."
    def __init__(self, env, tasks, names):
        self.env, self.tasks, self.plays = env, list(tasks), []
        for i, t in enumerate(self.tasks):
            row = rollout(scripted(names[i % len(names)], env.catalog), env, t, seed := episode_seed(0, t, 1))
            assert 'error' not in row, row['error']
            actions = [Message(s['action']['text']) if 'text' in s['action'] else ToolCall(**s['action']) for s in row['steps']]
            self.plays.append((t, seed, actions, dict(first=row['prompt'], texts=[s['observation'] for s in row['steps']], value=row['reward']['value'], outcome=row['outcome'], state=env.state_hash())))

    @contextlib.contextmanager
    def server(self, *guests):
        need('starlette', 'uvicorn', 'websockets')
        import uvicorn
        from shopping_grpo.serve_http import Connection, listen, make_app
        desk, sock = Server(self.env, self.tasks, capacity=8), listen('127.0.0.1', 0)
        server = uvicorn.Server(uvicorn.Config(make_app(desk, guests=guests), http=Connection, ws='websockets-sansio', ws_per_message_deflate=False, log_level='warning'))
        thread = threading.Thread(target=server.run, kwargs=dict(sockets=[sock]), daemon=True)
        thread.start()
        try: yield f'http://127.0.0.1:{sock.getsockname()[1]}'
        finally: server.should_exit = True; thread.join(30)
        assert not desk.sessions


# every way takes a world and yields what was seen in each of its episodes

def by_game(w):
    for t, seed, actions, _ in w.plays:
        g = Game(env := copy.copy(w.env), t, seed)
        first, texts = g.seen.text, [g.do(a).text for a in actions]
        yield dict(first=first, texts=texts, value=g.reward, outcome=g.row['outcome'], state=env.state_hash())


def remotely(w, env):
    for t, seed, actions, _ in w.plays:
        first, steps = env.reset(t, seed).text, [env.step(a) for a in actions]
        yield dict(first=first, texts=[s.observation.text for s in steps], value=env.score().value, outcome=steps[-1].outcome, state=env.state_hash())
    env.close()

def by_http(w):
    from shopping_grpo.serve_client import HttpEnv
    with w.server() as url: yield from remotely(w, HttpEnv(url))

def by_websocket(w):
    from shopping_grpo.serve_client import SocketEnv
    with w.server() as url: yield from remotely(w, SocketEnv(url))


def by_gymnasium(w):
    need('gymnasium')
    from shopping_grpo.interop_gymnasium import ShopEnv
    shop = ShopEnv(env := copy.copy(w.env), w.tasks)
    for i, (t, seed, actions, _) in enumerate(w.plays):
        first, _ = shop.reset(seed=seed, options={'task': i if i % 2 else t.key})
        steps = [shop.step(write_text(a)) for a in actions]
        text, value, terminated, truncated, info = steps[-1]
        assert terminated != truncated and not any(r or t or c for _, r, t, c, _ in steps[:-1])
        yield dict(first=first, texts=[s[0] for s in steps], value=value, outcome=info['outcome'], state=env.state_hash())


def by_mcp(w):
    need('mcp.server.lowlevel', 'starlette', 'uvicorn')
    from mcp.client import Client
    from shopping_grpo.interop_mcp import mcp
    from shopping_grpo.serve_client import HttpEnv
    async def play(trainer, t, seed, actions):
        trainer.reset(t, seed)
        texts, over = [], False
        async with Client(trainer.url + trainer._fetch('POST', f'/mcp/{trainer._held[0]}', {})['path']) as client:
            first, tools = client.instructions, (await client.list_tools()).tools
            assert [(t.name, t.input_schema) for t in tools] == [(t.name, t.parameters) for t in trainer.tools]
            for a in actions:
                if isinstance(a, Message): s = trainer.step(a); texts.append(s.observation.text); break # what is no call, the trainer sends
                r = await client.call_tool(a.name, a.args)
                texts.append(r.content[0].text)
                over = r.structured_content['done']
        return first, texts
    with w.server(mcp) as url:
        trainer = HttpEnv(url)
        for t, seed, actions, _ in w.plays:
            first, texts = asyncio.run(play(trainer, t, seed, actions))
            yield dict(first=first, texts=texts, value=trainer.score().value, outcome=None, state=trainer.state_hash())
            trainer._over = True
        trainer.close()


def by_trl(w):
    need('trl', 'torch')
    from shopping_grpo.interop_trl import rows, shops
    shop = shops(lambda: copy.copy(w.env), w.tasks)
    for row, (t, seed, actions, _) in zip(rows(w.tasks), w.plays):
        place = shop()
        first = place.reset(**row)
        texts = [getattr(place, a.name)(**a.args) for a in actions if isinstance(a, ToolCall)]
        yield dict(first=first, texts=texts[:-1], value=place.get_reward(), outcome=place._row['outcome'], state=place._env.state_hash())


def by_inspect(w, tmp='logs'):
    need('inspect_ai')
    import inspect_ai as ai, tempfile
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from shopping_grpo.interop_inspect import shop_task
    plans = {x['first']: actions for _, _, actions, x in w.plays}
    assert len(plans) == len(w.plays)
    def model(messages, tools, choice, config):
        a = plans[messages[0].text][sum(m.role == 'assistant' for m in messages)]
        out = ModelOutput.from_content('mockllm', a.text) if isinstance(a, Message) else ModelOutput.for_tool_call('mockllm', a.name, a.args)
        out.usage = ModelUsage() # or the mock counts tokens with a file from the network
        return out
    with tempfile.TemporaryDirectory() as logs:
        log, = ai.eval(shop_task(w.env, w.tasks), model=get_model('mockllm/model', custom_outputs=model), log_dir=logs, display='none')
        assert log.status == 'success'
        done = {s.id: s for s in log.samples}
    for t, *_ in w.plays:
        s, row = done[t.key], done[t.key].metadata['episode']
        yield dict(first=row['prompt'], texts=[x['observation'] for x in row['steps']], value=s.scores['verified'].value['reward'], outcome=row['outcome'], state=s.metadata['state'])


def by_openenv(w):
    need('openenv.core', 'starlette', 'uvicorn')
    from shopping_grpo.interop_openenv import ShopAction, ShopClient
    from shopping_grpo.serve_openenv import openenv
    with w.server(openenv) as url, ShopClient(base_url=url + '/openenv').sync() as env:
        for t, seed, actions, _ in w.plays:
            first = env.reset(task=t.key, seed=seed).observation.text
            steps = [env.step(ShopAction(text=a.text) if isinstance(a, Message) else a) for a in actions]
            assert env.state().step_count == len(actions)
            yield dict(first=first, texts=[s.observation.text for s in steps], value=steps[-1].reward, outcome=steps[-1].observation.outcome, state=None)


WAYS = dict(game=by_game, http=by_http, websocket=by_websocket, gymnasium=by_gymnasium, mcp=by_mcp, trl=by_trl, inspect=by_inspect, openenv=by_openenv)


def same(w, way):
    seen = list(WAYS[way](w))
    assert len(seen) == len(w.plays)
    for got, (t, seed, actions, want) in zip(seen, w.plays):
        want = dict(want, texts=want['texts'][:sum(isinstance(a, ToolCall) for a in actions) - 1 if way == 'trl' else None])
        if way == 'trl': got = dict(got, texts=got['texts'][:len(want['texts'])]) # TRL is told "the episode has ended" instead of the last observation
        assert got == want | {k: None for k, x in got.items() if x is None}, (way, t.key) # what a framework cannot tell


@pytest.fixture(scope='module')
def shopsim(tiny, tiny_engine): return World(ShopSim(tiny, tiny_engine), Requests(tiny, seed=11).tasks('train', 6), ['oracle', 'rule', 'random'])

@pytest.mark.parametrize('way', WAYS)
def test_the_same_episodes(shopsim, way): same(shopsim, way)


@pytest.fixture(scope='module')
def worlds(tiny, tiny_engine, tmp_path_factory):
    "Thirty episodes of each family, in the shops that are made at first use."
    root, before, names = tmp_path_factory.mktemp('root'), os.environ.get('SHOPPING_GRPO_ROOT'), ['oracle', 'rule', 'random']
    made = dict(shopsim=World(ShopSim(tiny, tiny_engine), Requests(tiny, seed=12).tasks('train', 30), names))
    (root/'settings.ini').write_text((ROOT/'settings.ini').read_text())
    os.environ['SHOPPING_GRPO_ROOT'] = str(root)
    try:
        for family in FAMILIES[1:]:
            env = load_env(family)
            tasks = [t for t in load_tasks(env.catalog.path.parent/'tasks'/f'{family}-val.jsonl') if env.plays(t)]
            made[family] = World(env, list({t.prompt: t for t in tasks}.values())[:30], names)
        yield made
    finally: os.environ.update(SHOPPING_GRPO_ROOT=before) if before else os.environ.pop('SHOPPING_GRPO_ROOT')

@pytest.mark.slow
@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('family', FAMILIES)
def test_the_same_episodes_in_every_family(worlds, family, way):
    assert len(worlds[family].plays) == 30
    same(worlds[family], way)


def test_what_went_wrong_is_no_reward(shopsim):
    "A shop that breaks is raised, whoever plays."
    class Broken(ShopSim):
        def _seek(self, *_): raise RuntimeError('boom')
    env = Broken(shopsim.env.catalog, shopsim.env.engine)
    game = Game(env, shopsim.tasks[0])
    with pytest.raises(EnvError, match='shopsim failed: RuntimeError: boom'): game.do(ToolCall('search_products', {'query': '茶'}))
    assert game.over and game.reward is None and game.do(ToolCall('buy_now')).error


@pytest.mark.parametrize('text', ['', 'x', '[]', '{}', '{"name": ["a"], "args": 3}', '{"name": "fly"}', '[' * 100_000, '{"args": {}}'])
def test_any_text_is_an_action(shopsim, text):
    g = Game(copy.copy(shopsim.env), shopsim.tasks[0])
    g.do(read_text(text))
    assert g.over == isinstance(read_text(text), Message)


def test_gymnasium_is_content(shopsim):
    need('gymnasium')
    import warnings, gymnasium
    from gymnasium.utils.env_checker import check_env
    from shopping_grpo.interop_gymnasium import ShopEnv
    gymnasium.register('shopping-grpo/ShopSim-v1', entry_point=lambda **how: ShopEnv(copy.copy(shopsim.env), shopsim.tasks, **how))
    made = gymnasium.make('shopping-grpo/ShopSim-v1', render_mode='ansi')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        check_env(made.unwrapped)
    _, info = made.reset(seed=1)
    again = made.reset(seed=1)[0]
    assert again == made.reset(seed=1)[0] != made.reset(seed=2)[0]
    over = False
    while not over: _, reward, terminated, truncated, info = made.step(made.action_space.sample()); over = terminated or truncated
    assert info['outcome'] and (reward == 0) == (made.unwrapped.game.reward == 0)


def test_gymnasium_in_parallel(shopsim):
    "Gymnasium's own vector environment."
    need('gymnasium')
    from gymnasium.vector import SyncVectorEnv
    from shopping_grpo.interop_gymnasium import ShopEnv
    many = SyncVectorEnv([lambda: ShopEnv(copy.copy(shopsim.env), shopsim.tasks)] * 3)
    first, info = many.reset(seed=[1, 2, 3])
    seen, rewards, terminated, truncated, info = many.step([write_text(ToolCall('finish_without_purchase', {'reason': 'no_suitable_product'}))] * 3)
    assert list(first) == [shopsim.tasks[i].prompt for i in (1, 2, 3)] and terminated.all() and (rewards < 0).all()


def test_mcp_by_stdio(shopsim, tmp_path):
    "A process of its own, and the real client; who goes away has stopped."
    need('mcp.server.lowlevel')
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client
    root = tmp_path
    (root/'settings.ini').write_text((ROOT/'settings.ini').read_text())
    built = root/'data'/'built'/'tiny'
    built.mkdir(parents=True)
    (built/'catalog').symlink_to(shopsim.env.catalog.path); (built/'index').symlink_to(shopsim.env.engine.path)
    from shopping_grpo.task import save_tasks
    save_tasks(built/'tasks'/'shopsim-train.jsonl', shopsim.tasks)
    t, _, actions, want = shopsim.plays[0]
    async def play(n, out):
        command = StdioServerParameters(command=sys.executable, args=['-c', 'from shopping_grpo.cli import main; main()', 'mcp', '--size', 'tiny', '--task', '0', '--out', str(out)],
            env=os.environ | {'SHOPPING_GRPO_ROOT': str(root), 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path])})
        async with Client(stdio_client(command)) as client:
            return client.instructions, [(await client.call_tool(a.name, a.args)).content[0].text for a in actions[:n]]
    first, texts = asyncio.run(play(99, tmp_path/'whole.json'))
    row = json.loads((tmp_path/'whole.json').read_text())
    assert first == want['first'] and texts == want['texts'] and row['reward']['value'] == want['value'] and row['outcome'] == want['outcome']
    asyncio.run(play(1, tmp_path/'left.json'))
    assert json.loads((tmp_path/'left.json').read_text())['outcome'] == 'stopped'


def test_an_mcp_ticket_opens_nothing_else(shopsim):
    "The agent's address plays; it does not grade, reset or end, and it is not the lease."
    need('mcp.server.lowlevel', 'starlette', 'uvicorn')
    from shopping_grpo.interop_mcp import mcp
    from shopping_grpo.serve_client import HttpEnv, ServerError
    with shopsim.server(mcp) as url:
        one, two = HttpEnv(url), HttpEnv(url)
        one.reset(0); two.reset(1)
        path = one._fetch('POST', f'/mcp/{one._held[0]}', {})['path']
        id, ticket = path.split('/')[2:]
        assert one._held[1] not in path
        for where, lease in ((f'/sessions/{id}/score', ticket), (f'/sessions/{id}/reset', ticket), (f'/mcp/{id}', ticket), (f'/mcp/{two._held[0]}/{ticket}', ''), (f'/mcp/{id}/{one._held[1]}', ''), (f'/mcp/{id}', 'x')):
            two_, two._held = two._held, (id, lease)
            with pytest.raises(ServerError, match='no_session'): two._fetch('POST', where, {})
            two._held = two_
        one.close(); two.close()


def test_trl_trains_without_our_trainer(tmp_path):
    "TRL's own trainer, its generation and its tool loop: what it logs as reward is the mean of the grades."
    need('trl', 'torch')
    from toyshop import toy_model
    from trl import GRPOConfig, GRPOTrainer
    from shopping_grpo.grpo_trl import readable
    from shopping_grpo.interop_trl import rows, shops
    from shopping_grpo.toy import Toy, toy_tasks
    model, template = toy_model()
    model.config.use_cache = True
    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=8, num_generations=4, max_completion_length=160, generation_kwargs=dict(max_new_tokens=24), max_tool_calling_iterations=4,
        max_steps=1, logging_steps=1, save_strategy='no', report_to=[], disable_tqdm=True)
    t = GRPOTrainer(model=model, args=args, train_dataset=rows(toy_tasks()), processing_class=readable(template.tokenizer), environment_factory=shops(Toy, toy_tasks()))
    t.train()
    grades = [e._row['reward'] for e in t.environments]
    assert len(grades) == 8 and all(g['valid'] for g in grades) and sum(e._row['n_steps'] for e in t.environments) > 0
    assert abs(t.state.log_history[0]['reward'] - sum(g['value'] for g in grades) / 8) < 1e-6

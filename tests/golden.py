"""200 recorded episodes with their grades: `python tests/golden.py` records them anew.

Do that only for an intended change of the rules or of the tasks, with a higher `ShopSim.version`, a line in CHANGELOG.md and the scores before and after."""
import json, tempfile
from dataclasses import asdict
from pathlib import Path
from shopping_grpo import exploits as x
from shopping_grpo.audit import once, other_accepted
from shopping_grpo.core import atomic_write, canonical_json
from shopping_grpo.env import Message, ToolCall
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.policy import Abstain, Briefing, Rule
from shopping_grpo.probes import Shelves, near_miss, open_choice
from shopping_grpo.reward_v3 import VERSION
from shopping_grpo.task import Constraint, Goal, Task

PATH = Path(__file__).with_name('golden')/'shopsim.jsonl'
TASKS, SEED = 25, 20261129


def graded(env) -> dict: # how an episode ended and what it was worth
    "The two grades of the episode that an environment has just played."
    return {k: [r.kind, r.value if r.valid else None] for k, r in (('verified', env.score()), ('native', env.score_native()))}


def play(env, task, policy, seed) -> dict: # one line of the file
    "An episode with all that the policy did."
    o, done, actions = env.reset(task, seed), False, []
    policy.begin(Briefing(o.text, task.lang, tuple(env.tools), policies=env.policies), seed, **({'task': task} if getattr(policy, 'privileged', False) else {}))
    while not done:
        action = policy.act(o)
        step = env.step(action)
        o, done = step.observation, step.done
        actions.append([action.text] if isinstance(action, Message) else [action.name, action.args])
    return dict(task=task.key, policy=policy.name, actions=actions, outcome=str(step.outcome)) | graded(env)


def replay(env, task, line) -> dict:
    "The same actions again: outcome and grades as they are now."
    env.reset(task)
    for a in line['actions']: step = env.step(Message(a[0]) if len(a) == 1 else ToolCall(*a))
    return dict(outcome=str(step.outcome)) | graded(env)


def window_shop(v, o):
    "Opens product after product and never decides."
    o = yield from x.look_for(v, o, v.prompt)
    while True:
        for id, _ in v.guide.hits(o):
            o = yield v.guide.call('open', id)
            o = yield v.guide.call('back')
        o = yield v.guide.call('next')


def policies(env) -> list: # (policy, whether it has something to do on a task)
    "Agents that end in every way there is."
    guide, shelves = x.guide_for(env), Shelves(env.catalog)
    def told(name, script, pick): return x.Scripted(name, guide, script, once(pick))
    kinds = ('', 'price', 'option', 'attribute', 'brand', 'feature')
    return [told('oracle', x.buy_variant, lambda t: t.goal.target_variant), told('oracle-detour', x.detour, lambda t: t.goal.target_variant), told('oracle-other', x.buy_variant, other_accepted),
        *(told(f'near-miss {k}'.strip(), x.buy_variant, lambda t, k=k: near_miss(shelves, t, k)) for k in kinds), told('evidence-hider', x.hide_evidence, lambda t: open_choice(shelves, t)),
        told('honest-stop', x.stop_honestly, lambda t: {x.product_of(guide, a).id for a in t.goal.accepted}),
        *(x.Scripted(name, guide, s) for name, s in dict(first=x.buy_first, random=x.buy_random, dearest=x.buy_dearest, cheapest=x.buy_cheapest, legal=x.random_legal, loop=x.loop,
            format=x.format_only, nothing=x.do_nothing, prober=x.probe_grader, window=window_shop).items()), Rule(), Abstain()]


def load() -> tuple[dict, list[dict]]: # (key -> task, episodes)
    "The recorded episodes."
    lines = [json.loads(s) for s in PATH.read_text(encoding='utf-8').splitlines()]
    tasks = [Task(goal=Goal(tuple(Constraint(**c) for c in g['constraints']), tuple(g['accepted']), g['target'], g['target_variant']), **d) for line in lines if (d := dict(line.get('record', {}))) and (g := d.pop('goal'))]
    return {t.key: t for t in tasks}, [line for line in lines if 'actions' in line]


def versions() -> dict: return dict(shopsim=ShopSim.version, native=VERSION)


def record():
    "Write the file: versions, tasks, 200 episodes."
    from shopping_grpo.generate import generate
    from shopping_grpo.request import Requests
    from shopping_grpo.search import build_index
    with tempfile.TemporaryDirectory() as d:
        catalog = generate(f'{d}/catalog', 'tiny', workers=1)[0]
        env = ShopSim(catalog, build_index(f'{d}/index', catalog, workers=1))
        tasks, every = Requests(catalog, SEED).tasks('val', TASKS), policies(env)
        lines = []
        for i, t in enumerate(tasks):
            able = [p for p in every[i % len(every):] + every[:i % len(every)] if not getattr(p, 'pick', None) or p.pick(t) is not None]
            lines += [play(env, t, p, i) for p in able[:200 // TASKS]]
    rows = [dict(catalog=catalog.digest, versions=versions()), *(dict(record=asdict(t)) for t in tasks), *lines]
    PATH.parent.mkdir(exist_ok=True)
    atomic_write(PATH, b''.join(canonical_json(r) + b'\n' for r in rows))
    print(len(lines), 'episodes', PATH.stat().st_size, 'bytes')


if __name__ == '__main__': record()

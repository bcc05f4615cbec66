"""A small shop with conversations, shared by the tests of EcomRLVE."""
from types import SimpleNamespace
import pytest
from shopping_grpo.env import ToolCall
from shopping_grpo.envs.ecomrlve import EcomRLVE
from shopping_grpo.envs.ecomrlve_kinds import Talks
from shopping_grpo.envs.ecomrlve_policy import call, reply
from shopping_grpo.envs.shoppingbench_policy import Walker, shown
from shopping_grpo.envs.shoppingbench_shop import Market
from shopping_grpo.generate import generate
from shopping_grpo.policy import Briefing
from shopping_grpo.search import build_index

LEVELS = (0, 3, 6, 9, 12, 20)


@pytest.fixture(scope='session')
def shop(tmp_path_factory):
    "Catalogue, engine, task generator and environment, made once for all tests of the family."
    where = tmp_path_factory.mktemp('talk')
    catalog = generate(where/'catalog', 'tiny', languages=('en',), workers=1)[0]
    build_index(where/'index', catalog, workers=1)
    engine = Market(where/'index', catalog)
    return SimpleNamespace(where=where, catalog=catalog, engine=engine, talks=Talks(catalog, 5), env=EcomRLVE(catalog, engine))


def play(policy, env, task, seed=0):
    "One episode: the verified reward and all steps."
    o, steps, done = env.reset(task, seed), [], False
    policy.begin(Briefing(o.text, 'en', tuple(env.tools), policies=env.policies), seed, **({'task': task} if getattr(policy, 'privileged', False) else {}))
    while not done:
        steps.append(env.step(policy.act(o)))
        o, done = steps[-1].observation, steps[-1].done
    return env.score(), steps


def do(env, name, **args): return env.step(ToolCall(name, args)).observation
def run(env, task, calls):
    "Reset and make calls; returns the verified reward."
    env.reset(task)
    for a in calls: env.step(a)
    return env.score()


class FirstProduct(Walker):
    "Takes the first hit of the whole request, whatever its variants are."
    name = 'first-hit'
    def walk(self, o):
        while True:
            o = yield call('catalog_search', query=self.prompt[:300])
            name = next((p['name'] for p in shown(o)), '')
            if name: yield call('cart_add', product=f'{name}#1')
            yield call('cart_view')
            yield reply(products=name)


class Honest(Walker):
    "Looks around, finds nothing that it can vouch for, and says so."
    name = 'honest-stop'
    def walk(self, o):
        while True:
            o = yield call('catalog_search', query=self.prompt[:300])
            yield call('order_list')
            yield call('terms_search', query=self.prompt[:300])
            yield reply()

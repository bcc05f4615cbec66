"The audit as a gate, and the proof that it can fail: holes are planted and the right agent has to find them."
import pytest, yaml
from shopping_grpo import audit as audits
from shopping_grpo.audit import audit, gate, offered, reachable
from shopping_grpo.checklist import REPOSITORY, load_sheet, parse_sheet, sheet_score, unproven
from shopping_grpo.core import DataError, EnvError
from shopping_grpo.env import Environment, Message, Outcome, ToolCall, arguments, tool
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.exploits import Guide, Role, product_of, shopsim_guide
from shopping_grpo.probes import NOTHING, Shelves, chance, check_batch, check_monotone, denied, near_miss, stuffed, variants_of
from shopping_grpo.policy import BuyFirst
from shopping_grpo.request import Requests
from shopping_grpo.reward import Reward, invalid
from shopping_grpo.rollout import rollout
from shopping_grpo.task import satisfied

TRIVIAL = ['do-nothing', 'answer-only', 'spam', 'stuffed-search', 'loop', 'format-only', 'grader-prober', 'honest-stop', 'evidence-hider']


@pytest.fixture(scope='module')
def env(tiny, tiny_engine): return ShopSim(tiny, tiny_engine)


@pytest.fixture(scope='module')
def tasks(tiny, env):
    requests = Requests(tiny, seed=5)
    return reachable(env, [t for split in ('train', 'test') for t in requests.tasks(split, 30)])[0]


@pytest.fixture(scope='module')
def table(env, tasks): return audit(env, tasks, offered(env))


def test_smoke_split(table, tasks):
    "Oracles 100 %, near misses and trivial agents 0, no leak, no invalid verified reward; and the gate says the same."
    gate(table)
    rows = table[table.score == 'verified'].set_index('agent')
    assert (rows.loc[['oracle', 'oracle-detour', 'oracle-other', 'oracle, denied']].success == 1).all() and rows.loc['oracle'].n == len(tasks)
    misses = rows[rows.index.str.startswith('near-miss') & (rows.n > 0)]
    assert {'near-miss', 'near-miss price', 'near-miss option', 'near-miss attribute'} <= set(misses.index) and misses.success.max() == 0
    assert rows.loc[TRIVIAL].success.max() == 0
    assert table.leaks.sum() == 0 and rows.invalid.sum() == 0
    assert rows.loc['length-padder'].reward == rows.loc['buy-first-hit'].reward
    assert rows.loc['do-nothing'].reward <= rows.loc[['honest-stop', 'rule', 'oracle']].reward.min() and rows.loc['loop'].reward < rows.loc['honest-stop'].reward
    assert rows.loc['extras-abuser'].expectation.startswith('not applicable') and rows.loc['extras-abuser'].ok is None


def test_known_lines_are_findings_about_the_verified_score(table):
    "Nothing about oracles, near misses, leaks or trivial agents may ever be excused."
    excused = {agent for _, score, agent in audits.KNOWN if score == 'verified'}
    assert excused <= {'buy-first-hit', 'buy-top-rated', 'buy-cheapest', 'evidence-hider'}
    assert not (table.known.astype(bool) & (table.ok != False)).any()


def test_the_table_is_reproducible(env, tasks):
    one, two = (audit(env, tasks[:6], ('verified',)) for _ in range(2))
    assert one.equals(two)


def test_nothing_is_left_over(env, tasks, tiny, tiny_engine):
    "The oracle after other episodes, in another order, and in a fresh environment: the same rewards."
    guide = shopsim_guide(env)
    case = next(c for c in audits.informed_cases(guide, Shelves(tiny), ()) if c.name == 'oracle-detour')
    def rewards(shop, order): return audits.run_case(case, shop, order, guide, {'verified': 'score'}, 0)[0].rewards
    a = rewards(env, tasks[:10])
    assert a == rewards(env, tasks[:10][::-1]) == rewards(ShopSim(tiny, tiny_engine), tasks[:10])


# holes: each is one careless line in an environment, and one agent has to find it

class Watching(ShopSim):
    "Remembers what the agent sent, for the holes that need it."
    def reset(self, task, seed=0):
        self.sent = []
        return super().reset(task, seed)
    def step(self, action):
        self.sent.append(action)
        return super().step(action)
    def opened(self): return [arguments(a)['asin'] for a in self.sent if isinstance(a, ToolCall) and a.name == 'open_product'][-1]


WON = Reward(1.0, kind='success')


class PaysStopping(ShopSim):
    def score(self): return WON if self._outcome == Outcome.stopped else super().score()

class PaysAnswers(Watching):
    def score(self): return WON if isinstance(self.sent[-1], Message) and self._task.goal.target in self.sent[-1].text else super().score()

class LeaksInErrors(ShopSim):
    def _refuse(self, wrong): return super()._refuse(f'{wrong}; wanted {self._task.goal.target_variant}')

class IgnoresBudget(ShopSim):
    def score(self):
        r = super().score()
        return WON if r.kind == 'wrong_purchase' and all(g.ok or g.name.startswith('price') for g in r.gates) and all(v.ok for v in r.parts) else r

class IgnoresOptions(ShopSim):
    def score(self):
        r = super().score()
        return WON if r.kind == 'partial_purchase' and all(v.ok or v.name.startswith('option') for v in r.parts) else r

class BelievesText(Watching):
    def score(self):
        r = super().score()
        wishes = [str(c.value) for c in self._task.goal.constraints if c.kind != 'price']
        return WON if r.kind == 'partial_purchase' and all(w in self.catalog[self.opened()].description for w in wishes) else r

class PaysLength(Watching):
    def score(self):
        r = super().score()
        return Reward(r.value + min(0.1, len(str(self.sent)) / 10**6), kind=r.kind) if r.kind == 'wrong_purchase' else r

class PaysLoops(ShopSim):
    def score(self): return Reward(0.0, kind='loop') if self._outcome == Outcome.loop else super().score()

class MasksStops(ShopSim):
    def score(self): return invalid('no_grade') if self._outcome == Outcome.stopped else super().score()

class SellsNothing(ShopSim):
    def _illegal(self, name, args): return 'sold out' if name == 'buy_now' else super()._illegal(name, args)

class PaysTooMuch(ShopSim):
    def score(self): return Reward(2.0, kind='success') if super().score().kind == 'success' else super().score()

class PaysOnlyTheTarget(Watching):
    def score(self):
        r = super().score()
        return Reward(0.5, kind='alternative') if r.kind == 'success' and self.opened() != self._task.goal.target else r

HOLES = [(PaysStopping, 'do-nothing'), (PaysStopping, 'answer-only'), (PaysAnswers, 'spam'), (LeaksInErrors, 'grader-prober'), (IgnoresBudget, 'near-miss price'), (IgnoresOptions, 'near-miss option'),
    (IgnoresOptions, 'evidence-hider'), (BelievesText, 'near-miss, praised'), (PaysLength, 'length-padder'), (PaysLoops, 'loop'), (MasksStops, 'do-nothing'), (SellsNothing, 'oracle'), (PaysTooMuch, 'oracle'), (PaysOnlyTheTarget, 'oracle-other')]


@pytest.fixture(scope='module')
def holed(tiny, tiny_engine, tasks):
    "The table of a planted environment, audited once."
    done = {}
    def look(kind):
        if kind not in done: done[kind] = audit(kind(tiny, tiny_engine), tasks[:15], ('verified',))
        return done[kind]
    return look


@pytest.mark.parametrize('kind, agent', HOLES, ids=lambda x: getattr(x, '__name__', x))
def test_planted_hole_is_found(kind, agent, holed, table, monkeypatch):
    "The agent's line fails, for a reason that the sound shop does not give, and the gate names it."
    sound = table[(table.score == 'verified') & (table.agent == agent)].iloc[0]
    row = holed(kind).set_index('agent').loc[agent]
    assert row.ok is False and set(row.broken.split('; ')) - set(sound.broken.split('; '))
    monkeypatch.setattr(audits, 'KNOWN', {})
    with pytest.raises(DataError, match=rf'the audit of shopsim failed\..*{agent} under verified: success'): gate(holed(kind).assign(known=''))


def test_tasks_that_a_published_rule_refuses_are_left_out_and_counted(tiny, tiny_engine, tasks):
    class Picky(ShopSim):
        def score_native(self): return Reward(1.0, kind='gold_purchase') if 'a' in self._task.key[:1] else invalid('reward_unverifiable')
    kept, lost = reachable(Picky(tiny, tiny_engine), tasks)
    assert kept == [t for t in tasks if t.key[0] == 'a'] and sum(lost.values()) == len(tasks) - len(kept) > 0
    assert all(why.startswith('native: reward_unverifiable') for why in lost)


def test_an_audit_without_tasks_is_an_error(env):
    "Nothing played would be a table of empty lines, and the gate would let it through."
    with pytest.raises(DataError, match='there is no task to audit shopsim with'): audit(env, [])


def test_missing_score_is_an_error(env, tasks):
    with pytest.raises(DataError, match='has no magic score'): audit(env, tasks[:1], ('magic',))


# another shop: other tools, with vouchers, pieces and notes

class Kiosk(Environment):
    "A counter with one page of finds."
    name, max_turns, counts = 'kiosk', 20, True
    def __init__(self, catalog, engine): self.catalog, self.engine = catalog, engine
    def _begin(self, task, seed): return dict(ids=(), at='', chosen={}, pieces=1, paid=False)
    def _plain_state(self): return self._state
    def _legal(self): return ('find', 'jot', 'leave') + (('look',) if self._state['ids'] else ()) + (('pick', 'pieces', 'voucher', 'pay') if self._state['at'] else ())
    def _illegal(self, name, args):
        if name == 'look' and args['item'] not in self._state['ids']: return 'not on the counter'
        if name == 'pick' and args['choice'] not in [o.value for o in self.catalog[self._state['at']].options]: return 'not offered'
        return 'no such number' if name == 'pieces' and args['n'] < 1 else ''
    @tool
    def find(self, text:str): # words
        "Find things."
        self._state.update(at='', chosen={}, ids=tuple(h.product_id for h in self.engine.search(text, 20).hits))
        return '\n'.join(f'{i} | ¥{self.catalog[i].price / 100:.2f} | {self.catalog[i].title}' for i in self._state['ids'])
    @tool
    def look(self, item:str): # an id
        "Look at one."
        self._state.update(at=item, chosen={})
        p = self.catalog[item]
        return '\n'.join(f"options {a}: " + ' | '.join(o.value for o in p.options if o.axis == a and o.available) for a in p.axes)
    @tool
    def pick(self, choice:str): # an option
        "Pick an option."
        self._state['chosen'][next(o.axis for o in self.catalog[self._state['at']].options if o.value == choice)] = choice
        return choice
    @tool
    def pieces(self, n:int): # how many
        "Say how many."
        self._state['pieces'] = n
        return str(n)
    @tool
    def voucher(self, code:str): # a code
        "Hand in a voucher."
        return 'not valid'
    @tool
    def jot(self, note:str): # anything
        "Make a note."
        return 'noted'
    @tool
    def pay(self):
        "Pay."
        self._state['paid'], self._outcome = True, Outcome.purchased
        return 'paid'
    @tool
    def leave(self):
        "Go."
        self._outcome = Outcome.abstained
        return 'bye'
    def score(self):
        s = self._state
        if not s['paid']: return Reward({Outcome.abstained: -0.1}.get(self._outcome, -0.5), kind='none')
        p = self.catalog[s['at']]
        meant = [v.id for v in variants_of(p) if all(v.values[p.axes.index(a)] == x for a, x in s['chosen'].items())]
        return Reward(1.0, kind='sold') if meant and set(meant) <= set(self._task.goal.accepted) and (s['pieces'] == 1 or not self.counts) else Reward(-0.6, kind='wrong')
    def guide(self):
        roles = dict(search=Role('find', 'text'), open=Role('look', 'item'), choose=Role('pick', 'choice'), buy=Role('pay'), stop=Role('leave'), quantity=Role('pieces', 'n'), voucher=Role('voucher', 'code'), note=Role('jot', 'note'))
        return Guide(self.catalog, roles, (), dict(verified=('sold',)), dict(verified=(-0.6, 1.0)), None)


def test_another_environment_needs_a_guide_and_no_more(tiny, tiny_engine, tasks):
    rows = audit(Kiosk(tiny, tiny_engine), tasks[:20], ('verified',)).set_index('agent')
    assert set(rows.index[rows.ok == False]) <= {'buy-first-hit', 'buy-cheapest', 'buy-most-expensive'}, rows.broken # what these tasks lack in any shop
    assert rows.loc[['oracle', 'oracle-detour', 'oracle-other']].success.min() == 1 and rows.loc['extras-abuser'].n == 20 and rows.loc['extras-abuser'].ok
    assert rows.loc['length-padder'].steps > rows.loc['buy-first-hit'].steps # it takes a note
    class Careless(Kiosk): counts = False
    lucky = [t for t in Requests(tiny, seed=6).tasks('train', 200) if rollout(BuyFirst(), ShopSim(tiny, tiny_engine), t)['success']] # one first hit in thirty is right
    assert len(lucky) > 1 and audit(Careless(tiny, tiny_engine), lucky, ('verified',)).set_index('agent').loc['extras-abuser'].broken == 'success 0'


def test_an_environment_without_a_guide_is_refused(tasks):
    class Bare(Environment):
        name = 'bare'
        def score(self): return WON
    with pytest.raises(EnvError, match=r'bare has no guide\(\)'): audit(Bare(), tasks[:1], ('verified',))


# probes

def test_near_misses_violate_exactly_one_hard_constraint(tiny, tasks):
    shelves, found = Shelves(tiny), 0
    for t in tasks:
        hard = [c for c in t.goal.constraints if c.hard]
        for kind in {c.kind for c in hard}:
            if not (id := near_miss(shelves, t, kind)): continue
            p = tiny[id.rsplit('-', 1)[0]]
            v = next(v for v in p.variants if v.id == id)
            violated = [c.kind for c in hard if not satisfied(c, p, v)]
            assert (violated == [kind] or kind == 'category' in violated) and id not in t.goal.accepted and v.stock > 0
            found += 1
    assert found > len(tasks)


def test_chance_is_a_mean_of_shares(tiny):
    p = tiny.at(0)
    assert chance([p], {v.id for v in variants_of(p)}) == 1 and chance([p], set()) == 0
    assert chance([p, tiny.at(1)], {variants_of(p)[0].id}) == pytest.approx(1 / len(variants_of(p)) / 2)


def test_grades_are_monotone(env, tasks, tiny):
    guide = shopsim_guide(env)
    assert check_monotone(guide.grade, tasks, tiny) > 20 * len(tasks)
    def perverse(task, p, variants): # pays for the wrong category
        r = guide.grade(task, p, variants)
        return Reward(0.9, kind=r.kind) if p.category[-1] == NOTHING else r
    with pytest.raises(DataError, match='lowers the reward'): check_monotone(perverse, tasks, tiny)


def test_text_of_sellers_changes_no_verified_grade(env, tasks, tiny):
    "I3: targets and near misses under praise, denial and injected orders; 0 flips."
    guide, shelves, pairs = shopsim_guide(env), Shelves(tiny), 0
    for t in tasks:
        for id in {t.goal.target_variant, *(near_miss(shelves, t, k) for k in {c.kind for c in t.goal.constraints})} - {None}:
            p = product_of(guide, id)
            v = [v for v in p.variants if v.id == id]
            assert guide.grade(t, p, v) == guide.grade(t, stuffed(p, t), v) == guide.grade(t, denied(p, t), v)
            pairs += 2
    assert pairs >= 200


def test_an_invalid_reward_never_enters_a_batch_as_a_number():
    assert check_batch([Reward(1.0), invalid('x')]) == 1
    bad = Reward(1.0)
    object.__setattr__(bad, 'valid', False)
    with pytest.raises(DataError, match='must be masked'): check_batch([bad])


# checklist

def test_checklist_is_yaml_and_proven():
    text = (REPOSITORY/'environments'/'shopsim'/'abc.yaml').read_text(encoding='utf-8')
    items = load_sheet('shopsim')
    assert [{k: str(v) for k, v in r.items()} for r in yaml.safe_load(text)] == [
        {k: v for k, v in dict(id=i.id, asks=i.asks, score='n/a' if i.score is None else f'{i.score:g}', reason=i.reason, proof=i.proof).items() if v} for i in items]
    assert len(items) == 42 and set(sheet_score(items).part) == {'outcome validity', 'task validity', 'reporting'}


@pytest.mark.parametrize('proof', ['', 'tests/test_audit.py::test_that_nobody_wrote', 'tests/nowhere.py'])
def test_a_claim_needs_a_proof(proof):
    assert unproven(parse_sheet(f'- id: II.8\n  asks: x\n  score: 1\n  reason: y\n  proof: {proof}\n')[0])


@pytest.mark.slow
@pytest.mark.parametrize('size', ['tiny', 'small'])
def test_full_split(size, request):
    "2,000 tasks."
    shop = ShopSim(request.getfixturevalue(size), request.getfixturevalue(f'{size}_engine'))
    gate(audit(shop, reachable(shop, Requests(shop.catalog, seed=6).tasks('train', 2000))[0], offered(shop)))

"""Tasks: solvable, not trivial, said as they are meant, no leak between splits, final sets out of reach, stable under hash seeds."""
import json, os, subprocess, sys
from dataclasses import replace
from collections import Counter
import pytest
from shopping_grpo import phrase, request
from shopping_grpo.catalog import Variant
from shopping_grpo.core import DataError, Draws
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.generate import generate
from shopping_grpo.grammar import load_grammar
from shopping_grpo.phrase import bounds, check_request, mentions, paraphrase, read_bounds, say_budget, words
from shopping_grpo.policy import Abstain, BuyFirst, DoNothing, Oracle
from shopping_grpo.probes import Shelves, chance, lookalikes
from shopping_grpo.purchase import unpaid
from shopping_grpo.request import BLIND, SCENARIOS, Requests, Shelf, draw_budget
from shopping_grpo.rollout import rollout
from shopping_grpo.stage import find_stage, parse_parameters, profile_steps
from shopping_grpo.task import (SPLITS, Constraint, accepted, check_sheet, check_splits, family, grams, load_tasks, make_sheet, near_duplicates, open_tasks, refuse_final, satisfied, save_tasks, sheet_path, some_families,
    write_sheet)


@pytest.fixture(scope='module')
def requests(small): return Requests(small, seed=5)


@pytest.fixture(scope='module')
def tasks(requests): return [t for s in SPLITS for t in requests.tasks(s, 100)]


@pytest.fixture(scope='module')
def tiny_tasks(tiny):
    made = Requests(tiny, seed=20260813)
    return {s: made.tasks(s, 200) for s in SPLITS}


def test_every_task_is_solvable_and_not_for_free(tiny, tiny_engine, tiny_tasks):
    "D-5: the oracle solves each, whichever accepted variant it buys; doing nothing and giving up solve none; the first hit is seldom right."
    env, some = ShopSim(tiny, tiny_engine), [t for part in tiny_tasks.values() for t in part[:70]]
    for pick in (lambda g: g.target_variant, lambda g: g.accepted[0], lambda g: g.accepted[-1]):
        assert all(rollout(Oracle(tiny, pick), env, t)['success'] for t in some)
    for policy in (DoNothing(), Abstain()): assert not any(rollout(policy, env, t)['success'] for t in some)
    assert sum(rollout(BuyFirst(), env, t)['success'] for t in some) < 0.1 * len(some)


def test_what_is_not_published_and_why(tiny, tiny_tasks):
    "Each task pays its own target in full under both grades; no blind buyer gets far, by a count that knows nothing of the generator's masks; all draws are accounted for."
    shelves = Shelves(tiny)
    for t in [t for part in tiny_tasks.values() for t in part]:
        assert not unpaid(t, tiny[t.goal.target]) and chance(lookalikes(shelves, t), set(t.goal.accepted)) <= BLIND + 1e-12
    made = Requests(tiny, seed=7)
    assert len({t.key for t in (made.task('train', i) for i in range(40))}) == made.drawn['published'] == 40
    assert sum(made.losses().values()) == pytest.approx(1) and any(why.startswith('published rule: ') for why in made.drawn) and 'a blind purchase is right too often' in made.drawn


def test_a_task_that_the_published_rule_refuses_is_not_published(tiny, monkeypatch):
    monkeypatch.setattr(request, 'unpaid', lambda task, target: 'wrong_purchase: budget' if target.lang == 'en' else '')
    made = Requests(tiny, seed=7)
    assert {t.lang for t in made.tasks('train', 20)} == {'zh'} and made.drawn['published rule: wrong_purchase: budget'] > 5


def test_accepted_sets_are_exactly_what_a_scan_finds(small, tasks):
    "Every variant of every product of the shop, not only of the leaf."
    products = list(small)
    for t in tasks[::45]:
        hard = [c for c in t.goal.constraints if c.hard]
        want = sorted(v.id for p in products for v in p.variants if v.stock > 0 and p.lang == t.lang and all(satisfied(c, p, v) for c in hard))
        assert list(t.goal.accepted) == want and t.goal.target_variant in want


def test_the_shelf_agrees_with_the_rule(tiny, tiny_tasks):
    "Masks against `satisfied`, variant by variant, and the number of products that miss one wish against a plain count."
    leaves = {}
    for p in tiny: leaves.setdefault(' › '.join(p.category), []).append(p)
    for t in tiny_tasks['train'][::4]:
        pool, cs = leaves[t.category], t.goal.constraints
        shelf, hard = Shelf(pool), [c for c in t.goal.constraints if c.hard]
        for c in cs: assert shelf.meets(c).tolist() == [satisfied(c, p, v) for p in pool for v in p.variants]
        assert tuple(sorted(shelf.ids[shelf.right(cs)].tolist())) == accepted(cs, pool) == t.goal.accepted
        best = [max((sum(satisfied(c, p, v) for c in hard) for v in p.variants if v.stock > 0), default=0) for p in pool]
        assert shelf.near(cs) == sum(b == len(hard) - 1 for b in best)


def test_negation_needs_the_fact(small, tasks):
    "A product that does not say what it is made of does not meet 'not plastic'."
    seen = 0
    for t in tasks:
        p = small[t.goal.target]
        for c in t.goal.constraints:
            if c.op == 'ne' and c.kind == 'attribute':
                seen += 1
                assert satisfied(c, p, p.variants[0]) and not satisfied(c, p._replace(attributes=()), Variant('x', (), 1, 1))
    assert seen > 5


def test_all_kinds_of_tasks_occur(tasks):
    cs = [(t, c) for t in tasks for c in t.goal.constraints]
    assert {t.scenario for t in tasks} == set(SCENARIOS) and {t.lang for t in tasks} == {'zh', 'en'}
    assert {c.source for _, c in cs} == {'stated', 'profile', 'clarification'} and {c.kind for _, c in cs} >= {'category', 'brand', 'attribute', 'feature', 'option', 'price'}
    assert {(c.kind, c.op) for _, c in cs} >= {('price', 'le'), ('price', 'ge'), ('attribute', 'ne'), ('option', 'ne')} and {c.hard for _, c in cs if c.kind != 'price'} == {True, False}
    for t in tasks:
        told = [c.source for c in t.goal.constraints]
        assert ('clarification' in told) == (t.scenario in ('multi', 'both')) and (t.persona != '') == (t.scenario in ('persona', 'both')) and t.goal.constraints[0].source == 'stated'
        assert sum(c.hard and c.source == 'stated' for c in t.goal.constraints) >= 2 and all(c.hard for c in t.goal.constraints if c.source != 'stated')
    assert len({t.difficulty for t in tasks}) >= 8


def test_a_mix_is_kept_and_errors_name_the_cause(tiny):
    assert {t.scenario for t in Requests(tiny, 3, mix=dict(both=1)).tasks('train', 5)} == {'both'}
    with pytest.raises(DataError, match='scenario .chat. is unknown'): Requests(tiny, 3, mix=dict(chat=1))
    with pytest.raises(DataError, match='near must lie'): Requests(tiny, 3, near=2)


@pytest.mark.parametrize('lang', ['zh', 'en'])
def test_budgets_read_back(lang):
    "Each drawn budget admits the price it was drawn around, and its phrase is read as exactly its bounds, alone and inside a sentence."
    kinds = set()
    for n in range(1500):
        d = Draws(n, lang)
        price = int(10 ** (2 + 4.3 * d.uniform(1)[0]))
        wish = draw_budget(price, lang, 0.8, d)
        low, high, hard = bounds(wish)
        assert wish and (low or 0) <= price and (high is None or price <= high)
        text = say_budget(wish, lang, d)
        assert read_bounds(('想买一款电饭煲，' if lang == 'zh' else 'I need a rice cooker; ') + text + ('，颜色要红的' if lang == 'zh' else ', and the colour should be red.')) == [(low, high, hard)]
        kinds.add((low is None, high is None, hard))
    assert len(kinds) == 5 # caps, floors and ranges; soft caps and soft ranges


def test_phrases_say_nothing_by_themselves():
    "No frame, clause or word of small talk holds a word that a wish or a leaf could be named by."
    for lang in ('zh', 'en'):
        known = {w for values in phrase._lexicon(lang).values() for ws in values.values() for w in ws} | {b[lang == 'en'] for domain in load_grammar()[0] for b in domain.brands}
        tables = [ts for t in (phrase._FACT, phrase._FEATURE, phrase._BRAND, phrase._BARE, phrase._PLAIN) for (g, _), ts in t.items() if g == lang]
        texts = [x for ts in [phrase._FRAMES[lang], phrase._TALK[lang], phrase._LIVES[lang], *phrase._BUDGET[lang].values(), *tables] for x in ts]
        texts += [phrase.write_persona([], '', lang, Draws(1)).split('：')[0].split(':')[0]]
        for form in texts:
            bare = phrase.re.sub(r'\{\w+\}', '§', form)
            assert not mentions(bare, [(w, w) for w in known]), bare


def _spans(t, c): # where a wish is said
    text = t.prompt if c.source == 'stated' else t.persona
    return [(s, e) for s, e, what in mentions(text, [(w, o) for o in t.goal.constraints if o.kind != 'price' and o.source == c.source for w in words(o, t.category, t.lang)]) if what == c]


def test_no_wish_can_be_lost_or_turned(tasks):
    "Cutting out, negating or doubling any wish of any task is noticed."
    for t in tasks[::3]:
        check_request(t)
        for c in t.goal.constraints:
            if c.kind == 'price' or c.source == 'clarification': continue
            (s, e), where = _spans(t, c)[0], 'prompt' if c.source == 'stated' else 'persona'
            text = getattr(t, where)
            for wrong in (text[:s] + text[e:], f'{text} {text[s:e]}', *([text[:s] + ('不是' if t.lang == 'zh' else 'not ') + text[s:]] if c.op == 'eq' else [])):
                with pytest.raises(DataError): check_request(replace(t, **{where: wrong}))


def test_no_number_can_be_changed(tasks):
    for t in tasks[::3]:
        for m in phrase.re.finditer(r'\d', t.prompt):
            with pytest.raises(DataError): check_request(replace(t, prompt=t.prompt[:m.start()] + str((int(m[0]) + 1) % 10) + t.prompt[m.end():]))


def test_hidden_wishes_leak_nowhere(tasks):
    hidden = [(t, c) for t in tasks for c in t.goal.constraints if c.source == 'clarification']
    assert len(hidden) > 30
    for t, c in hidden:
        said = [say_budget((c,), t.lang, Draws(1))] if c.kind == 'price' else [' ' + w for w in words(c, t.category, t.lang)]
        for w in said:
            for where in ('prompt', 'persona'):
                with pytest.raises(DataError): check_request(replace(t, **{where: getattr(t, where) + w}))


def test_paraphrases_are_taken_only_when_they_say_the_same(tasks):
    "An honest model is believed; one that drops a wish, changes a number, adds a wish or falls silent is not."
    t = next(t for t in tasks if t.lang == 'zh' and t.scenario == 'single' and any(c.kind == 'price' for c in t.goal.constraints) and any(c.isdigit() for c in t.prompt))
    honest = paraphrase(t, lambda q: '你好呀！' + q.split('\n\n', 1)[1])
    assert honest.prompt == '你好呀！' + t.prompt and honest.goal == t.goal and honest.key != t.key
    s, e = _spans(t, t.goal.constraints[1])[0]
    other = next(w for (category, f), vs in phrase._lexicon('zh').items() if category == t.category and f == 'feature' for ws in vs.values() for w in ws if w not in t.prompt and len(w) > 2)
    digit = phrase.re.search(r'\d', t.prompt)
    for wrong in (t.prompt[:s] + t.prompt[e:], t.prompt[:digit.start()] + str((int(digit[0]) + 1) % 10) + t.prompt[digit.end():], t.prompt + f'要{other}的。', '', t.prompt * 5):
        assert paraphrase(t, lambda q: wrong) == t
    asked = []
    paraphrase(t, lambda q: asked.append(q) or '')
    assert t.goal.target not in asked[0] and t.prompt in asked[0]


def test_no_split_leaks_into_another(tasks):
    "D-4."
    check_splits(tasks)
    t = next(t for t in tasks if t.split == 'train')
    for leak, message in ((replace(t, split='test'), 'task'), (replace(t, split='test', prompt='x' * 50), 'product'),
                          (replace(t, split='test', prompt=t.prompt + '!', goal=replace(t.goal, accepted=('0-0',))), 'nearly the same')):
        with pytest.raises(DataError, match=message): check_splits(tasks + [leak])


def test_near_duplicates_are_exactly_those_of_all_pairs(tasks):
    d, texts = Draws(1, 'twins'), [t.prompt for t in tasks[:150]]
    for t in texts[:100]: # copies with a few characters changed, so that the index falls on both sides of the bar
        for _ in range(1 + d.one(6)): at = d.one(len(t)); t = t[:at] + d.pick(('', 'x', '的', 'yz')) + t[at + 1:]
        texts.append(t)
    texts += ['', 'ab', 'ab', 'abcdef', 'abcdeg']
    sides = [d.one(2) for _ in texts]
    sets = [grams(t) for t in texts]
    pairs = [(i, j) for j in range(len(texts)) for i in range(j) if 5 * len(sets[i] & sets[j]) >= 4 * len(sets[i] | sets[j])]
    assert 20 < len(pairs) < 110 and near_duplicates(texts) == sorted(pairs)
    assert near_duplicates(texts, sides) == sorted((i, j) for i, j in pairs if sides[i] != sides[j])


@pytest.mark.slow
def test_two_thousand_a_split_have_no_leak(requests): check_splits(t for s in SPLITS for t in requests.tasks(s, 2000))


def test_the_frozen_splits_are_made_again(tiny, tiny_tasks):
    "The committed sheet belongs to this generator; if this fails, a change to the catalogue or to the tasks was not meant, or new splits have to be frozen (stage 05 with freeze=True)."
    assert check_sheet(sheet_path('shopsim', 'tiny'), make_sheet(tiny_tasks, tiny, 20260813))
    assert [len(p['keys']) for p in json.loads(sheet_path('shopsim', 'tiny').read_text())['splits'].values()] == [200, 200, 200]


def test_the_final_split_of_the_profiles_is_made_again(tmp_path):
    "Profiles `laptop` and `reference`: the shop and the options of their first line give the final tasks that are frozen."
    line = next(given for stage, given, _ in profile_steps('reference') if stage == '05')
    p = parse_parameters(find_stage('05'), line)
    shop, _ = generate(tmp_path/'lesson', p['size'], languages=tuple(p['languages'].split(',')), workers=1)
    made = make_sheet({'test': Requests(shop, 20260813, **p['task_options']).tasks('test', 60)}, shop, 20260813, p['task_options'])
    assert check_sheet(sheet_path('shopsim', 'lesson'), made)
    assert len(json.loads(sheet_path('shopsim', 'lesson').read_text())['splits']['test']['keys']) == p['tasks'] == 1000


def test_a_sheet_names_the_task_that_differs(tiny, tiny_tasks, tmp_path):
    short = {s: ts[:5] for s, ts in tiny_tasks.items()}
    write_sheet(tmp_path/'s.json', make_sheet(short, tiny, 1))
    assert check_sheet(tmp_path/'s.json', make_sheet({s: ts[:3] for s, ts in short.items()}, tiny, 1))
    assert not check_sheet(tmp_path/'s.json', make_sheet(short, tiny, 2)) and not check_sheet(tmp_path/'none.json', {})
    changed = short | dict(val=[*short['val'][:3], replace(short['val'][3], revision=2), short['val'][4]])
    with pytest.raises(DataError, match='task 3 of split val'): check_sheet(tmp_path/'s.json', make_sheet(changed, tiny, 1))


def test_final_sets_are_kept_from_training(tiny_tasks, tmp_path):
    "By split, by key under another split, and by goal in other words."
    for s, part in tiny_tasks.items(): save_tasks(tmp_path/f'{s}.jsonl', part[:5])
    assert open_tasks(tmp_path/'val.jsonl', 'val', 'select') == tiny_tasks['val'][:5] and open_tasks(tmp_path/'test.jsonl', 'test', 'evaluate') == tiny_tasks['test'][:5]
    for purpose in ('train', 'select'):
        with pytest.raises(DataError, match="split 'test'"): open_tasks(tmp_path/'test.jsonl', 'test', purpose)
    with pytest.raises(DataError, match="belongs to split 'test'"): open_tasks(tmp_path/'test.jsonl', 'train', 'evaluate')
    with pytest.raises(DataError, match='purpose'): open_tasks(tmp_path/'val.jsonl', 'val', 'tune')
    final = tiny_tasks['test'][0]
    for disguised in (final, replace(final, split='train'), replace(final, split='train', prompt='in other words')):
        with pytest.raises(DataError, match='final set'): refuse_final([tiny_tasks['train'][0], disguised])
    save_tasks(tmp_path/'renamed.jsonl', [replace(final, split='train')])
    with pytest.raises(DataError, match='shopsim-tiny.json'): open_tasks(tmp_path/'renamed.jsonl', 'train', 'train')
    refuse_final(tiny_tasks['train'] + tiny_tasks['val'])


def test_keys_do_not_depend_on_the_process(small, tasks):
    "E8."
    code = f"from shopping_grpo.catalog import Catalog; from shopping_grpo.request import Requests; print([t.key for t in Requests(Catalog({str(small.path)!r}), seed=5).tasks('test', 10)])"
    outs = {subprocess.run([sys.executable, '-c', code], env=os.environ | {'PYTHONHASHSEED': h}, capture_output=True, text=True, check=True).stdout.strip() for h in ('0', '1', 'random')}
    assert outs == {str([t.key for t in tasks if t.split == 'test'][:10])}


def test_task_sets_are_endless_and_lazy(requests, tasks):
    many = requests.endless('test')
    assert many[3] == [t for t in tasks if t.split == 'test'][3] and many[10_000].split == 'test'
    with pytest.raises(TypeError, match='endless'): len(many)
    assert sorted(t.key for t in many.head(20).shuffle(1)) == sorted(t.key for t in many.head(20))


def test_files(tasks, tmp_path):
    save_tasks(tmp_path/'t.jsonl', tasks)
    assert load_tasks(tmp_path/'t.jsonl') == tasks
    with pytest.raises(DataError, match='data build'): load_tasks(tmp_path/'none.jsonl')


def test_sold_out_is_not_accepted(small, tasks):
    for t in tasks[::20]:
        p = small[t.goal.target]
        gone = p._replace(variants=tuple(v._replace(stock=0) for v in p.variants))
        assert accepted(t.goal.constraints, [gone]) == ()


def test_tight_budgets(tmp_path):
    plain, _ = generate(tmp_path/'lesson', 'lesson', languages=('en',), workers=1)
    prices = {v.price for p in plain for v in p.variants}
    assert len(prices) <= 12 and all(len({v.price for v in p.variants}) == 1 for p in plain) and not any(c in x for p in plain for v in p.variants for x in v.values for c in '🔥[')
    ends = [c for t in Requests(plain, 1, mix=dict(single=1), blind=0.25, wishes=(2, 4), tight=True).tasks('train', 40) for c in t.goal.constraints if c.kind == 'price']
    assert len(ends) > 20 and all(c.hard and c.value in prices for c in ends)
    with pytest.raises(DataError, match='tight budgets need whole prices'): Requests(generate(tmp_path/'tiny', 'tiny', workers=1)[0], 1, tight=True)


def test_no_two_tasks_of_a_set_share_a_goal(tiny, tiny_tasks):
    "Other words make no other task; and where there are too few goals, that is said."
    class Few(Requests): # every task comes again in other words and in another order, and each target with a wish less
        def task(self, split, number):
            t, way = tiny_tasks[split][number // 4 % 40], number % 4
            if way == 2: return replace(t, goal=replace(t.goal, constraints=t.goal.constraints[::-1]))
            return replace(t, prompt=t.prompt + ' !' * way) if way < 2 else replace(t, goal=replace(t.goal, constraints=t.goal.constraints[:-1]))
    made = Few(tiny, 1).tasks('val', 60)
    assert len({frozenset(t.goal.constraints) for t in made}) == 60 and len({t.prompt for t in made}) < 60 and not any(t.prompt.endswith(' !') for t in made)
    one = Few(tiny, 1, per_product=1).tasks('val', 20)
    assert len({t.goal.target for t in one}) == 20 and one[0] == made[0]
    with pytest.raises(DataError, match='split val has only .* of 200 tasks with different goals; ask for fewer tasks'): Few(tiny, 1).tasks('val', 200)
    with pytest.raises(DataError, match='per_product must be 1 or more'): Requests(tiny, 1, per_product=0)


def test_a_part_of_the_families_is_asked_for_by_shares(tiny, tiny_tasks):
    tasks = tiny_tasks['train']
    part = lambda a, b: some_families(tasks, tiny, [a, b])
    whole = {family(t, tiny) for t in tasks}
    cut = [part(a, b) for a, b in ((0, .3), (.3, .6), (.6, 1))]
    assert sorted(t.key for ts in cut for t in ts) == sorted(t.key for t in tasks) and part(0, 1) == list(tasks)
    kin = [{family(t, tiny) for t in ts} for ts in cut]
    assert set.union(*kin) == whole and sum(map(len, kin)) == len(whole) and abs(len(kin[0]) - .3 * len(whole)) <= 1
    assert [t.key for t in cut[0]] == [t.key for t in tasks if family(t, tiny) in kin[0]] # in the order of the tasks
    for bad in ([.5, .5], [.6, .2], [-.1, 1], [0, 1.1]):
        with pytest.raises(DataError, match='are no part'): some_families(tasks, tiny, bad)
    stranger = replace(tasks[0], goal=replace(tasks[0].goal, target='nobody'))
    with pytest.raises(DataError, match='belongs to no family'): some_families([stranger], tiny, [0, .5])

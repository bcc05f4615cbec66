"Rubrics: candidates word for word, a curator that can only choose, frozen files, and nothing of goal or reward inside."
import json
from dataclasses import asdict, replace
import pytest
from shopping_grpo import judge
from shopping_grpo.budget import parse_budget
from shopping_grpo.catalog import Product, Variant
from shopping_grpo.core import DataError, canonical_json
from shopping_grpo.envs import ecomrlve_build, shoppingbench_build, webshop_shop
from shopping_grpo.generate import generate
from shopping_grpo.judge import HARDNESS, KINDS, Lexicon, Request, choose_by_rules, curate, extract, freeze_rubrics, load_rubrics, request_of
from shopping_grpo.request import Requests
from shopping_grpo.task import Constraint, Goal, Order

CATEGORY = ('Home', 'Kitchen', 'kettle')


def product(id, leaf=CATEGORY, lang='en', brand='Tea Corner', model='', options=(('colour', 'matte black'),), attributes=(('finish', 'matte', True),), features=('keep warm',), **more):
    axes, values = zip(*options)
    return Product(id=id, title='x', lang=lang, category=leaf, brand=brand, shop='Tea Corner Store', model=model, price=100, attributes=attributes, features=features, axes=axes, variants=(Variant(f'{id}-0', values, 100, 1),), **more)

SHOP = [product('1', model='KE-100 Pro'), product('2', brand='Oak', options=(('colour', 'red'), ('lid colour', 'red'))), product('3', ('Food', 'Drinks', 'tea'), brand='Leaf & Co', options=(('flavour', 'white tea'),), attributes=(), features=())]


def rubric(text, shop=SHOP, lang='en', **more): return curate(r := Request('k', 'shopsim', lang, text), extract(r, Lexicon(shop, lang)), choose_by_rules, 'rules')
def plain(items): return [(i.kind, i.operator, i.expected, i.hardness) for i in items]


@pytest.fixture(scope='module')
def families(tiny, tmp_path_factory):
    "(task, lexicon) of all families, some thousand."
    english, _ = generate(tmp_path_factory.mktemp('english')/'catalog', 'tiny', languages=('en',), workers=1)
    lexicons, en = {lang: Lexicon(tiny, lang) for lang in ('zh', 'en')}, Lexicon(english, 'en')
    own = [(t, lexicons[t.lang]) for t in Requests(tiny, 5).tasks('train', 900)]
    others = [(t, en) for make in (webshop_shop, shoppingbench_build, ecomrlve_build) for t in make.requests_for(english, 5).tasks('train', 400)]
    return own + others


@pytest.fixture(scope='module')
def made(families):
    "(task, lexicon, candidates, rubric) for each."
    out = []
    for t, lexicon in families:
        r = request_of(t)
        found = extract(r, lexicon)
        out.append((t, lexicon, found, curate(r, found, choose_by_rules, 'rules')))
    return out


def test_candidates_are_word_for_word_in_thousands_of_requests(made):
    assert len(made) >= 2000
    for t, _, found, r in made:
        told = f'{t.prompt}\n{t.persona}'.strip('\n')
        assert r.text == told and [c.id for c in found] == [f'c{n:04d}' for n in range(1, len(found) + 1)]
        for c in found:
            assert told[c.start:c.end] == c.quote and c.quote and c.kind in KINDS and c.hardness in ('hard', 'soft')
        chosen = {c.id: c for c in found}
        for i in r.items:
            c = chosen[i.candidate]
            assert (i.kind, i.field, i.operator, i.expected, i.thing) == (c.kind, c.field, c.operator, c.expected, c.thing) and i.quote in told and i.hardness in HARDNESS
        assert len({(i.thing, i.field, i.operator, canonical_json(i.expected)) for i in r.items}) == len(r.items)


def test_all_kinds_but_model_occur_by_themselves(made):
    assert {i.kind for *_, r in made for i in r.items} >= {*KINDS} - {'model'}


def test_the_money_of_a_rubric_is_what_the_one_parser_reads(made):
    for t, _, found, r in made:
        if t.env not in ('shopsim', 'webshop'): continue
        ends = {(c.op, c.value, c.hard) for c in t.goal.constraints if c.kind == 'price' and c.source != 'clarification'}
        read = {x for i in r.items if i.field == 'purchase.price' for x in ([('le', i.expected)] if i.operator == 'lte' else [('ge', i.expected)] if i.operator == 'gte' else zip(('ge', 'le'), i.expected))}
        assert read == {x[:2] for x in ends}, t.prompt
        assert all((i.hardness == 'hard') == hard for i in r.items if i.field == 'purchase.price' for *_, hard in ends)
        assert sum(c.field == 'purchase.price' for c in found) == len(parse_budget(r.text))


def test_what_was_asked_is_found(made):
    "The goal stands here only: rubrics are made without it."
    names = {'product.category': 'category', 'product.brand': 'brand', 'product.features': 'feature', 'product.services': 'service'}
    for t, _, _, r in made:
        if t.env not in ('shopsim', 'webshop'): continue
        asked = {(c.field or c.kind, c.op == 'ne', c.value, c.hard) for c in t.goal.constraints if c.kind != 'price' and c.source != 'clarification'}
        got = {(names.get(i.field) or i.field.split('.', 2)[2], i.operator in ('ne', 'excludes'), i.expected.split(' › ')[-1] if i.kind == 'category' else i.expected, i.hardness == 'hard') for i in r.items if i.field != 'purchase.price'}
        assert got == asked, t.prompt


def test_nothing_of_goal_or_reward_reaches_a_rubric(made):
    canary = Constraint('brand', 'CANARY', 'CANARY')
    for t, lexicon, found, r in made[::5]:
        goal = (Order if isinstance(t.goal, Order) else Goal)((canary,), ('CANARY-0',), 'CANARY', 'CANARY-0', **(dict(more=dict(CANARY='CANARY', reward=1)) if isinstance(t.goal, Order) else {}))
        other = request_of(replace(t, goal=goal, category='CANARY', difficulty=77, split='val'))
        again = extract(other, lexicon)
        assert again == found and b'CANARY' not in canonical_json(curate(other, again, choose_by_rules, 'rules'))
        assert set(asdict(r)) == {'task_key', 'env', 'lang', 'text', 'extractor', 'curator', 'items'} and set(asdict(other)) == {'key', 'env', 'lang', 'text'}


def test_the_module_has_no_way_to_a_goal_or_a_reward():
    assert not {'Goal', 'Order', 'Reward', 'satisfied', 'accepted', 'grade'} & vars(judge).keys()


@pytest.mark.parametrize('text, want', [
    ('A kettle in matte black, keep warm is a must', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard'), ('option', 'eq', 'matte black', 'hard'), ('core_function', 'contains', 'keep warm', 'hard')]),
    ('a kettle by Tea Corner', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard'), ('brand', 'eq', 'Tea Corner', 'hard')]),  # the category tea does not hide in the brand
    ('white tea from Leaf & Co', [('option', 'eq', 'white tea', 'hard'), ('brand', 'eq', 'Leaf & Co', 'hard')]),
    ('kettle, model ke-100 pro', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard'), ('model', 'eq', 'KE-100 Pro', 'hard')]),
    ('kettle kettle KETTLE, matte, matte', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard'), ('core_function', 'contains', 'matte', 'hard')]),
    ('a kettle, not from Oak, preferably matte', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard'), ('brand', 'ne', 'Oak', 'hard'), ('core_function', 'contains', 'matte', 'soft')]),
    ('a kettle without keep warm', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard'), ('core_function', 'excludes', 'keep warm', 'hard')]),
    ('a red kettle', [('option', 'eq', 'red', 'needs_review'), ('category', 'in_category', 'Home › Kitchen › kettle', 'hard')]),  # of the body, or of the lid?
    ('a kettle with red for the lid colour', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard'), ('option', 'eq', 'red', 'hard')]),
    ('a kettle from Tea Corner Store', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard')]),  # a seller is no brand
    ('a kettle for 20 to 30 dollars', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard'), ('price_range', 'between', [2000, 3000], 'hard')]),
    ('a kettle\nV1: $9 off when the order reaches $37', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard')]),
    ('it replaces "Oak red kettle", matte', [('core_function', 'contains', 'matte', 'hard')]),
    ('hello', []), ('', []), ('ＫＥＴＴＬＥ', [('category', 'in_category', 'Home › Kitchen › kettle', 'hard')]),
])
def test_by_hand(text, want): assert plain(rubric(text).items) == want


@pytest.mark.parametrize('text, sizes', [('I want a kettle, s would be ok', []), ('a kettle with S for the size', ['S']), ('a kettle with size: S', ['S'])])
def test_a_single_letter_needs_its_field(text, sizes):
    shop = [product(str(n), options=(('size', x),)) for n, x in enumerate(('S', 'I', 'A'))]
    assert [i.expected for i in rubric(text, shop).items if i.kind == 'option'] == sizes


def test_the_lid_is_the_lid():
    item, = [i for i in rubric('a kettle with red for the lid colour').items if i.kind == 'option']
    assert item.field == 'purchase.options.lid colour'


@pytest.mark.parametrize('text, kind, operator, expected, hardness', [('壶，预算300', 'budget_upper', 'lte', 30000, 'hard'), ('壶，不低于100元', 'price_lower', 'gte', 10000, 'hard'), ('壶，200到300元', 'price_range', 'between', [20000, 30000], 'hard'),
    ('壶，300左右', 'price_preference', 'approximately', [27000, 33000], 'soft'), ('壶，300多', 'price_preference', 'approximately', [30000, 39999], 'soft'), ('壶，60元出头', 'price_preference', 'approximately', [6000, 6600], 'soft'), ('壶，最好不超过300元', 'budget_upper', 'lte', 30000, 'soft')])
def test_money(text, kind, operator, expected, hardness):
    r = rubric(text, [product('1', ('家', '厨', '壶'), 'zh', '茶角')], 'zh')
    assert plain(r.items)[1:] == [(kind, operator, expected, hardness)] and r.items[0].kind == 'category'


REQUEST = Request('k', 'shopsim', 'en', 'A kettle in matte black, up to $30')
FOUND = extract(REQUEST, Lexicon(SHOP, 'en'))
GOOD = dict(candidate='c0001', hardness='hard', quote='kettle', reason='said')


@pytest.mark.parametrize('choice, message', [(GOOD | dict(candidate='c0099'), "no candidate 'c0099'"), (GOOD | dict(quote='teapot'), 'not in the request'), (GOOD | dict(quote='matte'), "not about 'kettle'"), (GOOD | dict(quote=''), 'not in the request'),
    (GOOD | dict(hardness='firm'), 'hardness is one of'), (GOOD | dict(expected='teapot'), 'needs exactly'), ({k: v for k, v in GOOD.items() if k != 'reason'}, 'needs exactly'), (GOOD | dict(reason=' '), 'no reason'), (GOOD | dict(quote=7), 'must be texts'), ('c0001', 'needs exactly'), (None, 'needs exactly'), (GOOD | dict(candidate=['c0001']), 'must be texts')])
def test_a_curator_may_only_choose(choice, message):
    with pytest.raises(DataError, match=f'task k: choice 2 of curator m is refused: .*{message}'): curate(REQUEST, FOUND, lambda *_: [GOOD | dict(candidate='c0002', quote='matte black'), choice], 'm')


def test_the_same_requirement_is_not_chosen_twice():
    twice = Request('k', 'shopsim', 'en', 'A kettle, a good kettle')
    found = extract(twice, Lexicon(SHOP, 'en'))
    with pytest.raises(DataError, match='it asks for the same as c0001'): curate(twice, found, lambda *_: [GOOD, GOOD | dict(candidate='c0002')], 'm')


def test_another_curator_decides_what_it_may():
    "Hardness, a longer quote and which candidates: everything else is copied."
    r = curate(REQUEST, FOUND, lambda *_: [GOOD | dict(hardness='needs_review', quote='A kettle in matte', reason='which?')], 'm')
    assert [(i.quote, i.hardness, i.reason, i.expected, i.id) for i in r.items] == [('A kettle in matte', 'needs_review', 'which?', 'Home › Kitchen › kettle', 'r01')] and r.curator == 'm'


def test_a_frozen_rubric_stays(made, tmp_path):
    path, rubrics = tmp_path/'shopsim-test.jsonl', [r for *_, r in made[:40]]
    seal = freeze_rubrics(path, rubrics[:30])
    before = path.read_bytes()
    assert freeze_rubrics(path, rubrics[:30]) == freeze_rubrics(path, rubrics[10:20]) == seal and path.read_bytes() == before
    assert freeze_rubrics(tmp_path/'again.jsonl', rubrics[:30]) == seal and load_rubrics(path) == {r.task_key: r for r in rubrics[:30]}
    r = rubrics[3]
    for other in (replace(r, items=r.items[:-1]), replace(r, curator='m'), replace(r, extractor=99), replace(r, text=r.text + ' '), replace(r, items=(replace(r.items[0], hardness='soft'), *r.items[1:]))):
        with pytest.raises(DataError, match=f'1 rubrics differ from the frozen ones in shopsim-test.jsonl, the first of task {r.task_key}'): freeze_rubrics(path, [rubrics[35], other])
        assert path.read_bytes() == before, 'a refusal writes nothing'
    assert freeze_rubrics(path, rubrics[20:]) != seal and list(load_rubrics(path)) == [r.task_key for r in rubrics] and path.read_bytes().startswith(before)


@pytest.mark.parametrize('edit', [lambda d: d['items'][0].update(hardness='soft'), lambda d: d['items'].pop(), lambda d: d.update(text='other'), lambda d: d.update(curator='me'), lambda d: d.update(digest='0' * 16)])
def test_an_edited_file_is_noticed(made, tmp_path, edit):
    path, rubrics = tmp_path/'r.jsonl', [r for *_, r in made[:3]]
    freeze_rubrics(path, rubrics)
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    edit(lines[1])
    path.write_text('\n'.join(json.dumps(x, ensure_ascii=False) for x in lines))
    with pytest.raises(DataError, match=r'r.jsonl, line 2: .* does not match its hash'): load_rubrics(path)
    with pytest.raises(DataError, match='does not match its hash'): freeze_rubrics(path, rubrics)


def test_missing_rubrics_are_said(tmp_path):
    with pytest.raises(DataError, match='no rubrics at none.jsonl'): load_rubrics(tmp_path/'none.jsonl')


def test_published_requests(samples, tmp_path):
    "Real products and requests that are not ours: what is found, and that quotes are word for word there too."
    from shopping_grpo.envs.webshop_goals import human_goals, import_shop, synthetic_goals
    names = [samples/'webshop'/n for n in ('items_shuffle_1000.json', 'items_ins_v2_1000.json', 'items_human_ins.json')]
    if not all(n.exists() for n in names): pytest.skip('the 1,000 published products are not here')
    catalog = import_shop(*names[:2], tmp_path/'real')
    lexicon = Lexicon(catalog, 'en')
    def measured(goals): # of budgets, options, attributes that stand in the text: found, asked
        out = {k: [0, 0] for k in ('budget', 'option', 'attribute')}
        for g in goals:
            r = Request(g.id, 'webshop', 'en', g.instruction)
            items = curate(r, extract(r, lexicon), choose_by_rules, 'rules').items
            assert all(i.quote in g.instruction for i in items)
            options, said = [x[1] if isinstance(x, tuple) else x for x in g.options], [a for a in g.attributes if a.lower() in g.instruction.lower()]
            got = {kind: {str(i.expected).lower() for i in items if i.kind == kind} for kind in ('option', 'core_function', 'budget_upper')}
            for kind, wanted, found in (('budget', [g.price_upper], got['budget_upper']), ('option', options, got['option']), ('attribute', said, got['core_function'])):
                out[kind][0] += sum(str(x).lower() in found for x in wanted); out[kind][1] += len(wanted)
        return out
    synthetic, human = measured(synthetic_goals(catalog, names[1])[::35]), measured(human_goals(catalog, names[2]))
    share = {k: a / n for k, (a, n) in synthetic.items()}
    assert share['budget'] == 1 and share['attribute'] > .99 and share['option'] > .9, synthetic
    assert human == dict(budget=[13, 13], option=[10, 16], attribute=[9, 11]), human

"The published Reward v3 on cases computed by hand from its description."
import json, math
from dataclasses import dataclass, replace
from typing import NamedTuple
import pytest
from shopping_grpo.core import Draws, ScoreError, canonical_json
from shopping_grpo.reward import Masked, load_reward
from shopping_grpo.reward_v3 import (
    OptionNeed, Price, RewardFeatures, best_case, budget_gate, canonical_axis, category_gate, compile_features, is_acceptable, match, match_brand, match_function, match_model,
    match_option, native_upper, option_text, partial_value, published_record, resolve_price, score_abstain, score_purchase, score_stop)

class Option(NamedTuple): axis:str; value:str; price:int|None = None; available:bool = True
class Variant(NamedTuple): id:str; values:tuple; price:int; stock:int = 1

@dataclass(frozen=True)
class Item:
    "Anything with the attributes of a catalogue product."
    id:str = 'T'; title:str = ''; category:tuple = ('家电', '清洁电器', '洗地机'); brand:str = ''; shop:str = '洁鹿旗舰店'; model:str = ''; lang:str = 'zh'; price:int = 199900
    attributes:tuple = (); features:tuple = (); options:tuple = (); variants:tuple = (); axes:tuple = (); bullets:tuple = (); description:str = ''

def axes(**by_axis): # axis={value: price}
    return dict(axes=tuple(by_axis), options=tuple(Option(a, v, p) for a, vs in by_axis.items() for v, p in vs.items()))

MOP = Item(title='洁鹿 A20 智能洗地机', features=('智能洗地', '热洗'), **axes(颜色分类={'白色': 199900, '黑色': 199900}, 尺码={'L': 189900, 'XL': 199900}))
TASK = RewardFeatures('T', MOP.category, 220000, ('洁鹿',), ('a20',), ('洗地', '热洗'), (OptionNeed('白色', 'color'), OptionNeed('XL', 'size')))
RIGHT = {'颜色分类': '白色', '尺码': 'XL'}
NO_BUDGET = replace(TASK, upper=None)
OTHER = replace(MOP, id='X')
BAG = replace(MOP, category=('箱包', '背包'))
def soft(**kw): return replace(RewardFeatures('T', MOP.category, None), **kw) # only what is given is asked for

# ---- terminal types and the order of evaluation: product, selection, features, kind, value (None = masked)
ENDS = {
    'gold': (MOP, RIGHT, TASK, 'gold_purchase', 1.0),
    'alternative': (OTHER, RIGHT, TASK, 'valid_alternative_purchase', 0.55),
    'one of two options: S = .925': (MOP, {'颜色分类': '黑色', '尺码': 'XL'}, TASK, 'partial_alternative_purchase', -0.30 + 0.55*0.925),
    'no budget, nothing selected: S = .85': (MOP, {}, NO_BUDGET, 'partial_alternative_purchase', -0.30 + 0.55*0.85),
    'the target itself can be partial': (MOP, {'尺码': 'XL'}, TASK, 'partial_alternative_purchase', -0.30 + 0.55*0.925),
    'nothing matches: S = 0': (replace(OTHER, title='清洁机', shop='某店', features=('吸尘',)), {'颜色分类': '黑色', '尺码': 'L'}, TASK, 'partial_alternative_purchase', -0.30),
    'other category': (BAG, RIGHT, TASK, 'wrong_purchase', -0.85),
    'over the budget': (MOP, RIGHT, replace(TASK, upper=199899), 'wrong_purchase', -0.85),
    'exactly the budget': (MOP, RIGHT, replace(TASK, upper=199900), 'gold_purchase', 1.0),
    'cheaper size within the budget': (MOP, {'颜色分类': '白色', '尺码': 'L'}, replace(TASK, upper=190000), 'partial_alternative_purchase', -0.30 + 0.55*0.925),
    'priced axis not selected': (MOP, {'颜色分类': '白色'}, TASK, 'reward_unverifiable', None),
    'no category in the task': (MOP, RIGHT, replace(TASK, category=()), 'reward_unverifiable', None),
    'no category on the product': (replace(MOP, category=()), RIGHT, TASK, 'reward_unverifiable', None),
    'undecided price comes before a wrong category': (BAG, {}, TASK, 'reward_unverifiable', None),
    'undecided category comes before too dear': (replace(MOP, category=()), RIGHT, replace(TASK, upper=100), 'reward_unverifiable', None),
    'two priced axes': (replace(MOP, **axes(颜色分类={'白色': 199900, '黑色': 209900}, 尺码={'L': 189900, 'XL': 199900})), RIGHT, TASK, 'reward_unverifiable', None),
    'two priced axes without a budget': (replace(MOP, **axes(颜色分类={'白色': 199900, '黑色': 209900}, 尺码={'L': 189900, 'XL': 199900})), RIGHT, NO_BUDGET, 'gold_purchase', 1.0),
    'nothing asked for': (OTHER, {}, soft(), 'valid_alternative_purchase', 0.55),
    'nothing asked for, the target': (MOP, {}, soft(), 'gold_purchase', 1.0),
    'missing axis lowers the coverage': (replace(MOP, **axes(颜色分类={'白色': 199900})), {'颜色分类': '白色'}, TASK, 'partial_alternative_purchase', -0.30 + 0.55*0.925),
    'brand and model wrong: S = .40': (replace(OTHER, title='B7 洗地机', shop='某店'), RIGHT, TASK, 'partial_alternative_purchase', -0.30 + 0.55*0.40),
}

@pytest.mark.parametrize('product,selected,features,kind,value', ENDS.values(), ids=ENDS)
def test_end(product, selected, features, kind, value):
    r = score_purchase(product, selected, features)
    assert (r.kind, r.valid) == (kind, value is not None)
    assert r.value == pytest.approx(value, abs=1e-12) if r.valid else isinstance(r.value, Masked)
    assert load_reward(json.loads(canonical_json(r))).kind == kind

@pytest.mark.parametrize('s,value', [(0, -0.30), (0.5, -0.025), (0.545, -0.00025), (0.25, -0.1625), (1, 0.25)])
def test_partial_formula(s, value): assert partial_value(s) == pytest.approx(value, abs=1e-12)

# ---- weights: which dimensions are asked for, S by hand
WEIGHTED = [
    (soft(brands=('洁鹿',), options=(OptionNeed('红', 'color'),)), 0.35/0.50),          # brand right, option wrong
    (soft(models=('a20',), functions=('防水',)), 0.25/0.50),
    (soft(brands=('别家',), models=('a20',), functions=('热洗',)), 0.50/0.85),
    (soft(functions=('热洗', '防水', '洗地', '静音')), 0.5),
    (soft(brands=('洁鹿', '别家')), 0.5),
    (soft(options=(OptionNeed('白色', 'color'), OptionNeed('XL', 'size'))), 1.0),
]

@pytest.mark.parametrize('features,s', WEIGHTED)
def test_weights_are_shared_among_what_is_asked(features, s):
    m = match(MOP, RIGHT, features)
    assert (m.score, m.coverage) == (pytest.approx(s), 1.0)

def test_coverage():
    features = soft(brands=('洁鹿',), options=(OptionNeed('白色', 'color'), OptionNeed('5kg', 'capacity'))) # the product has no such axis
    m = match(MOP, RIGHT, features)
    assert (m.score, m.coverage) == (pytest.approx((0.35 + 0.15*0.5)/0.50), pytest.approx((0.35 + 0.15*0.5)/0.50)) and not m.full

# ---- gates
@pytest.mark.parametrize('want,have,ok', [
    (('家电', '洗地机'), ('家电', '清洁', '洗地机'), True), (('洗地机',), ('家电', '洗地机'), True), (('家电', '洗地机'), ('洗地机',), True), (('家电', '洗地机'), ('工具', '洗地机'), False),
    (('家电', '洗地机'), ('家电', '吸尘器'), False), (('家电', 'ＡＢ 机'), ('家电', 'ab机'), True), ((), ('洗地机',), None), (('洗地机',), (' ',), None), (('', '洗地机'), ('工具', '洗地机'), True)])
def test_category_gate(want, have, ok): assert category_gate(want, have).ok is ok

@pytest.mark.parametrize('amount,upper,ok', [(100, 100, True), (101, 100, False), (0, 1, True), (None, 100, None), (100, 0, None), (-1, 100, None), (None, None, True), (10**9, None, True)])
def test_budget_gate(amount, upper, ok): assert budget_gate(Price(amount, ''), upper).ok is ok

# ---- variant prices
ONE, TWO = axes(颜色={'白': 100, '黑': 100}, 尺码={'S': 100, 'M': 200}), axes(颜色={'白': 100, '黑': 300}, 尺码={'S': 100, 'M': 300})
COMBOS = dict(axes=('颜色', '尺码'), options=ONE['options'], variants=(Variant('1', ('白', 'M'), 250), Variant('2', ('黑', 'M'), 260)))
PRICES = [
    ({}, {}, 199900, 'single_base_price'),
    (axes(颜色={'白': 50, '黑': 50}), {}, 50, 'constant_option_price'),
    (axes(颜色={'白': 50}, 尺码={'S': 60}), {'颜色': '白', '尺码': 'S'}, None, 'price_not_deterministic'),
    (axes(颜色={'白': None}), {'颜色': '白'}, None, 'price_not_deterministic'),
    (ONE, {'尺码': 'M'}, 200, 'unique_effective_price_axis'),
    (ONE, {'鞋码': ' m '}, 200, 'unique_effective_price_axis'),
    (ONE, {'颜色': '白'}, None, 'effective_price_axis_unselected'),
    (ONE, {'尺码': 'XXL'}, None, 'selected_variant_price_missing'),
    (TWO, {'颜色': '黑', '尺码': 'M'}, None, 'multiple_effective_price_axes'),
    (COMBOS, {'颜色': '白', '尺码': 'M'}, 250, 'full_variant_combination'),
    (COMBOS, {'颜色分类': '黑', '鞋码': 'm'}, 260, 'full_variant_combination'),
    (COMBOS, {'尺码': 'M'}, 200, 'unique_effective_price_axis'), # quirk: an open axis falls through to a price that no combination has
    (axes(颜色={'白': 50}, 颜色分类={'黑': 50}), {'颜色': '白'}, None, 'invalid_option_axes'),
    (ONE, {'尺码': 'M', '鞋码': 'S'}, None, 'invalid_option_axes'),
    (dict(variants=(Variant('0', (), 100), Variant('1', (), 200))), {}, None, 'price_not_deterministic'), # a base price range
]

@pytest.mark.parametrize('fields,selected,amount,method', PRICES)
def test_price(fields, selected, amount, method): assert resolve_price(replace(Item(), **fields), selected) == Price(amount, method)

def test_price_rule_v2():
    assert resolve_price(replace(Item(), **TWO), {'颜色': '黑', '尺码': 'M'}, 'v2') == Price(300, 'selected_effective_axes_consensus')
    for selected in ({'颜色': '黑', '尺码': 'S'}, {'颜色': '黑'}, {}): assert resolve_price(replace(Item(), **TWO), selected, 'v2').amount is None
    assert score_purchase(replace(MOP, **TWO), {'颜色': '黑', '尺码': 'M'}, soft(upper=300), 'v2').valid
    with pytest.raises(ScoreError, match='unknown'): resolve_price(Item(), {}, 'v3')

# ---- axes and option values
def test_axis_aliases():
    groups = [('颜色', '颜色分类'), ('尺码', '鞋码'), ('尺寸', '大小'), ('净含量', '总净含量'), ('口味', '食品口味'), ('规格', '规格描述', '规格类型'), ('套餐', '套餐类型', '组合套餐'), ('容量', '规格容量')]
    names = [{canonical_axis(a) for a in g} for g in groups]
    assert all(len(n) == 1 for n in names) and len(set().union(*names)) == 8
    assert canonical_axis('版 本') == '版本' and canonical_axis('颜色 分类') == 'color' and canonical_axis('尺码') != canonical_axis('尺寸')

def test_option_text(): assert option_text(' Ａ/B ') == 'a|b' == option_text('a | b')

@pytest.mark.parametrize('need,fields,selected,ok', [
    (OptionNeed('M', 'size'), ONE, {'尺码': 'M'}, True), (OptionNeed('M', 'size'), ONE, {'鞋码': 'm'}, True), (OptionNeed('M', 'size'), ONE, {'尺码': 'S'}, False), (OptionNeed('M', 'size'), ONE, {}, False),
    (OptionNeed('XL', 'size'), ONE, {'尺码': 'XL'}, False),                      # not a value of this product
    (OptionNeed('5kg', 'capacity'), ONE, {'容量': '5kg'}, None),                 # no such axis
    (OptionNeed('M', 'size'), axes(颜色={'白': 1}, 颜色分类={'黑': 1}, 尺码={'M': 1}), {'尺码': 'M'}, None), # a collision elsewhere is enough
    (OptionNeed('M', 'size'), ONE, {'尺码': 'M', '鞋码': 'M'}, None),
    (OptionNeed('小码', 'size'), ONE, {'尺码': 'S'}, False),                     # quirk: strings decide
    (OptionNeed('白', reason='axis_not_found'), ONE, {'随便什么': '白'}, True), (OptionNeed('白', reason='axis_ambiguous'), ONE, {'颜色': '黑'}, False),
    (OptionNeed('M', 'size'), dict(axes=('尺码',), options=(Option('尺码', 'M', 1, False),)), {'尺码': 'M'}, True)]) # quirk: stock plays no role
def test_match_option(need, fields, selected, ok): assert match_option(need, replace(Item(), **fields), selected).ok is ok

# ---- brand, model, functions
@pytest.mark.parametrize('brand,item,ok', [
    ('洁鹿', Item(), True), ('洁鹿', Item(shop='某店', brand='洁鹿'), True), ('洁鹿', Item(shop='某店', title='洁鹿 洗地机'), False), # quirk: the title is not read
    ('apple', Item(shop='苹果专卖店'), True), ('苹果', Item(shop='APPLE Store'), True), ('海信', Item(brand='Hisense'), True), ('philips', Item(shop='菲利普'), False), ('洁鹿', Item(shop='兼容洁鹿配件店'), True)])
def test_match_brand(brand, item, ok): assert match_brand(brand, item).ok is ok

@pytest.mark.parametrize('model,item,ok', [
    ('a20', Item(title='洗地机A20新款'), True), ('a20', Item(title='A200'), False), ('a20', Item(title='xA20'), False), ('a20', Item(title='Ａ２０'), True), ('a20', Item(title='A20-Pro'), True),
    ('a20', Item(title='A20', model='B1'), False), ('a20', Item(title='B1', model='a20'), True), ('a20', Item(description='A20'), None), ('a20', Item(title='x', description='A20'), False)])
def test_match_model(model, item, ok): assert match_model(model, item).ok is ok

@pytest.mark.parametrize('word,item,ok', [
    ('热洗', Item(features=('支持热洗',)), True), ('热洗', Item(attributes=(('热洗', '有', True),)), True), ('热洗', Item(attributes=(('native:query', '热洗', False),)), None),
    ('热洗', Item(title='x', attributes=(('a', '热洗', False),)), False), ('热 洗', Item(features=('热洗',)), True),
    ('防水', Item(features=('不支持防水',)), False), ('防水', Item(features=('不支持防水',), title='防水'), False), # a negated attribute settles it
    ('防水', Item(features=('不防水', '防水袋')), True), ('防水', Item(features=('x',), title='防水'), True), ('防水', Item(features=('x',), bullets=('全身', '防水')), True),
    ('防水', Item(title='没有防水但防水'), True), ('防水', Item(title='非防水'), False), ('防水', Item(title='不具备防水'), False), ('防水', Item(title='无防水'), False), ('防水', Item(title='不含防水'), False),
    ('防水', Item(title='不是很防水'), True),  # quirk: the negation does not touch the word
    ('防水', Item(title='防水不支持'), True),  # quirk: a negation behind the word is not seen
    ('防水', Item(title='x'), False), ('防水', Item(), None)])
def test_match_function(word, item, ok): assert match_function(word, item).ok is ok

# ---- compilation
def test_compile():
    f = compile_features('买洁鹿 A20 洗地机，2025款，白色 XL，预算2200元', ['洗地', ' 热洗 ', '洗地', ''], ['白色', 'XL', '红'], replace(MOP, description='2025 新品，功率 300W'))
    assert f == RewardFeatures('T', MOP.category, 220000, ('洁鹿',), ('2025', 'a20'), ('洗地', '热洗'), (OptionNeed('白色', 'color'), OptionNeed('XL', 'size'), OptionNeed('红', reason='axis_not_found')))

@pytest.mark.parametrize('options,item,needs', [
    (['白'], axes(颜色={'白': 1}, 内胆={'白': 1}), (OptionNeed('白', reason='axis_ambiguous'),)),
    (['白', '黑'], axes(颜色={'白': 1, '黑': 1}), (OptionNeed('白', 'color'), OptionNeed('黑', reason='canonical_axis_collision'))),
    (['白', '绿'], axes(颜色={'白': 1}, 颜色分类={'绿': 1}), (OptionNeed('白', 'color'), OptionNeed('绿', reason='canonical_axis_collision'))),
    (['黑 | 绿'], axes(颜色={'黑/绿': 1}), (OptionNeed('黑 | 绿', 'color'),))])
def test_compile_options(options, item, needs): assert compile_features('', [], options, replace(Item(), **item)).options == needs

@pytest.mark.parametrize('text,title,shop,brands', [
    ('买云步跑鞋', '云步跑鞋', '云步官方旗舰店', ('云步',)), ('买云步家跑鞋', '云步家 跑鞋', '云步家居专营店', ('云步家',)), ('买云步跑鞋', '跑鞋', '云步旗舰店', ()), ('买跑鞋', '云步跑鞋', '云步旗舰店', ()),
    ('买云鞋', '云鞋', '云店', ()), ('买云步店的鞋', '云步店 跑鞋', '云步店', ('云步',)), ('苹果手机', 'Apple 手机', '苹果店', ('apple', '苹果')[:1]), ('新鲜苹果', '红富士苹果', '果园店', ('apple',)), # quirk: the fruit is the brand
    ('买一二三四五六七八九十甲乙丙', '一二三四五六七八九十甲乙丙', '一二三四五六七八九十甲乙丙旗舰店', ('一二三四五六七八九十甲乙',))])
def test_compile_brand(text, title, shop, brands): assert compile_features(text, [], [], Item(title=title, shop=shop)).brands == brands

@pytest.mark.parametrize('text,models', [('A20', ('a20',)), ('40码 2025', ('2025', '40')), ('7', ()), ('abc', ()), ('x-1.5+', ('x-1.5+',)), ('a'*23 + '1', ('a'*23 + '1',)), ('a'*24 + '1', ()), ('a20b', ('a20b',))])
def test_compile_model(text, models): assert compile_features(text, [], [], Item(title=f'新 {text} 款')).models == models

def test_a_task_can_contradict_itself():
    "A brand out of the title and a model out of the description: the target itself cannot be matched."
    item = replace(MOP, title='苹果洗地机', shop='某店', description='货号 B-77')
    f = compile_features('苹果 B-77', [], [], item)
    r = score_purchase(item, RIGHT, f)
    assert (f.brands, f.models) == (('apple',), ('b-77',)) and r.kind == 'partial_alternative_purchase' and r.value == pytest.approx(-0.30)

# ---- the native budget
NATIVE = {
    '预算在1000元以下': 100000, '价格不超过 2199 元': 219900, '预算在1万元左右': 1100000, '预算1万2以内': 1200000, '预算1万2千左右': 1320000, '预算300': 30000, '预算控制在300元': 30000, '预算2千': 200000, '预算1.5万': 1500000,
    '预算4k': 400000, '预算4k+': None, '预算4k+，最高5000元': None, '价格在35到40元之间': 4000, '预算200-300': 30000, '价格2k~3k': 300000, '价格在300元左右': 33000, '价格300元': 30000, '不高于80元': 8000, '最高99.9元': 9990, '290元以内': 29000, '290元以下': 29000,
    '预算1,200元': 120000, '价格19.9元左右': 2189, '预算9.99元左右': 1098, # 10.989
    '售价290元之内': None, '60元出头': None, '价格别超过15块': None, '300多': None, '170上下': None, '300封顶': None, '价位三百左右': None, '价格约40元': None, '不超过300': None, '价格是不高于800元': 80000, '': None,
    '预算300-200': 3000, '预算1万200': 21000000, '价格不限，40元以内': 4000, '预算0元': None,
}

@pytest.mark.parametrize('text,upper', NATIVE.items(), ids=[t or 'empty' for t in NATIVE])
def test_native_upper(text, upper): assert native_upper(text) == upper

def test_native_bound_is_the_published_comparison_to_the_fen():
    "The whole number of fen passes exactly when the published comparison of floats in yuan does."
    for seed in range(500):
        d = Draws(seed, 'native'); yuan = 1 + d.one(50_000); text = f"预算{yuan/d.pick([1, 10, 100]):g}元左右"
        upper, limit = native_upper(text), float(text[2:-3])*1.1
        assert all((fen <= upper) == (fen/100 <= limit) for fen in range(upper - 2, upper + 3)), text

# ---- giving up
@pytest.mark.parametrize('sets,opened,acceptable,kind,value', [(2, 2, 0, 'graceful_stop', -0.15), (3, 9, 0, 'graceful_stop', -0.15), (1, 2, 0, 'early_abstain', -0.35), (2, 1, 0, 'early_abstain', -0.35), (2, 2, 1, 'early_abstain', -0.35), (0, 0, 0, 'early_abstain', -0.35)])
def test_abstain(sets, opened, acceptable, kind, value):
    r = score_abstain(sets, opened, acceptable)
    assert (r.kind, r.value, r.valid) == (kind, value, True)

def test_stops():
    assert [(score_stop(r).kind, score_stop(r).value) for r in ('max_steps', 'repeat_loop')] == [('max_steps', -0.50), ('repeat_loop', -0.65)]
    with pytest.raises(ScoreError, match='no published value'): score_stop('crash')

# asked for, on MOP: brand .35, model .25, functions .25, options .15
@pytest.mark.parametrize('features,product,ok', [
    (TASK, MOP, True), (TASK, BAG, False), (replace(TASK, upper=190000), MOP, False),
    (replace(TASK, models=('b7',)), MOP, True),                       # S = .75
    (replace(TASK, brands=('别家',)), MOP, False),                    # S = .65
    (soft(functions=('洗地', '热洗', '静音')), MOP, False),           # S = .67
    (replace(TASK, options=(OptionNeed('红', 'color'),)), MOP, False), # a missing value selects nothing, and the price is undecided
    (replace(NO_BUDGET, options=(OptionNeed('红', 'color'),)), MOP, True), # without a budget S = .85
    (replace(NO_BUDGET, options=(OptionNeed('5kg', 'capacity'),)), MOP, True), # S = coverage = .85
    (soft(brands=('洁鹿',), options=(OptionNeed('5kg', 'capacity'),)), MOP, False)]) # S = coverage = .70, and .75 is asked for
def test_acceptable(features, product, ok): assert is_acceptable(product, features) is ok

def test_best_case():
    assert best_case(MOP, TASK) == RIGHT
    assert best_case(MOP, soft()) == {'颜色分类': '白色', '尺码': 'L'} # same price: lexical; else the cheapest
    assert best_case(replace(MOP, **axes(颜色={'b': None, 'c': 5, 'a': 5})), soft()) == {'颜色': 'a'}
    assert best_case(replace(MOP, **axes(颜色={'白': 1}, 颜色分类={'黑': 1})), soft()) == {}
    assert best_case(replace(MOP, axes=('颜色分类', '尺码', '版本')), TASK) == RIGHT and best_case(replace(MOP, axes=('版本', '颜色分类', '尺码')), soft()) == {} # an axis without values stops the filling

# ---- the published record
def test_published_record():
    r = published_record(score_purchase(OTHER, RIGHT, TASK))
    assert r['reward'] == r['terminal_utility'] == 0.55 and r['purchase_success'] and r['reward_valid'] and not r['sampling_invalid'] and not r['target_asin_match']
    assert r['reward_type'] == r['termination_reason'] == 'valid_alternative_purchase' and r['dimension_scores'] == dict(brand=1, model=1, core_functions=1, key_options=1)
    assert {k: v['status'] for k, v in r['hard_gates'].items()} == dict(category='pass', budget='pass') and r['weighted_score'] == r['evidence_coverage'] == 1
    masked = published_record(score_purchase(MOP, {}, TASK))
    assert masked['reward'] == 0.0 and masked['sampling_invalid'] and masked['hard_gates']['budget']['status'] == 'unverifiable' and masked['hard_gates']['category']['status'] == 'pass'
    assert published_record(score_stop('max_steps'))['hard_gates'] == {} and json.loads(canonical_json(masked)) == masked

def test_random_purchases_keep_the_invariants():
    "Value and validity follow from gates, S and coverage, whatever is bought."
    kinds = set()
    for seed in range(600):
        d = Draws(seed, 'v3')
        def some(n): return {d.pick(['白', '黑', 'S', 'M']): d.pick([100, 200, None]) for _ in range(d.one(n))}
        item = replace(Item(), id=d.pick('TX'), title=d.pick(['洁鹿 A20', 'B7', '']), category=d.pick([MOP.category, ('箱包', '背包'), ()]), features=d.pick([('热洗',), ('不热洗',), ()]),
                       **axes(颜色=some(3), 尺码=some(3)))
        selected = {o.axis: o.value for o in item.options if d.one(2)}
        f = replace(TASK, upper=d.pick([None, 150]), options=tuple(TASK.options[:d.one(3)]), functions=d.pick([(), ('热洗',)]))
        r = score_purchase(item, selected, f); kinds.add(r.kind)
        assert r.valid == all(g.ok is not None for g in r.gates) and (not r.valid or -0.85 <= r.value <= 1 and math.isfinite(r.value))
        if r.valid and all(g.ok for g in r.gates): assert (r.value > 0.25) == (r.evidence['match'] == r.evidence['coverage'] == 1)
    assert kinds == {'gold_purchase', 'valid_alternative_purchase', 'partial_alternative_purchase', 'wrong_purchase', 'reward_unverifiable'}

"The scores of ShoppingBench: every executed case of the published code, and a verified grade that none of its holes lets through."
import itertools, math
from fractions import Fraction as F
import pytest
from shopping_grpo.core import Draws, ScoreError
from shopping_grpo.env import ToolCall
from shopping_grpo.envs.shoppingbench_files import Deal, Instruction
from shopping_grpo.envs.shoppingbench_react import Turn
from shopping_grpo.envs.shoppingbench_score import FIELDS, Cosine, Native, assign, averages, budget_score, format_score, last_recommendation, length_score, native, native_reward, qwen_encoder, rule_score, score_table, text_similarity, verified
from shopping_grpo.envs.shoppingbench_voucher import PLATFORM, Offer, Voucher, total


def words(a, b): # stands in for the embedding
    one, two = set(a.lower().split()), set(b.lower().split())
    return len(one & two) / max(len(one | two), 1)


def doc(id, **more):
    return dict(product_id=id, shop_id='9', title='stoneware mug', description='', price=250.0, service=['COD', 'freeShipping'], sku_options={'1': {'color': 'red', 'size': 's'}, '2': {'color': 'blue', 'size': 'l'}}, attributes={'material': ['clay']}) | more


def wish(id='A', **more): return dict(product_id=id, title=['stoneware mug']) | more
def task(intent, *wishes, deal=None, answer=None): return Instruction(intent, 'q', tuple(wishes), deal, answer)
def shop(*docs): return {d['product_id']: d for d in docs}.get
def rule(d, w): return rule_score(d, w, words)[0]


TWO = task('shop', wish('A', attributes=[{'material': ['clay']}]), wish('B', attributes=[{'material': ['tin']}]))
BOTH = shop(doc('A'), doc('B', attributes={'material': ['tin']}))


# D.3, row by row

def test_a_blank_behind_the_comma_loses_the_second_id():
    n = native(TWO, 'A, B', BOTH, words)
    assert (n.rule, n.shop, n.success) == (0.5, 0, False) and native(TWO, 'A,B', BOTH, words).success


def test_another_order_loses_half():
    assert native(TWO, 'B,A', BOTH, words).rule == 0.5


def test_one_product_twice_is_allowed_and_paid_twice():
    n = native(task('shop', wish('C'), wish('D')), 'A,A', BOTH, words)
    assert (n.rule, n.shop, n.success, n.gold) == (1, 1, True, False)
    deal = Deal(PLATFORM, 'fixed', 100, 49_900, 1.0, face=1)
    assert native(task('voucher', wish('C'), wish('D'), deal=deal), 'A,A', BOTH, words).budget == 0


@pytest.mark.parametrize('ids', [['A'], 3, None, '', {'A': 1}])
def test_what_is_no_text_is_no_recommendation(ids):
    n = native(task('product', wish('A')), ids, BOTH, words)
    assert (n.rule, n.success) == (0, False) and n.fields == dict.fromkeys(FIELDS, 0)


def test_the_gold_id_passes_by_itself():
    assert rule_score(doc('A'), wish('A', price=[{'less than': [None, 1]}], service=['official']), words) == (1.0, dict.fromkeys(FIELDS, 1.0))


def test_title_only_takes_any_similar_title():
    assert rule(doc('X', title='stoneware mug blue'), wish('A')) == 1 and rule(doc('X', title='tin plate'), wish('A')) == 0


def test_a_reward_without_conditions_stops_the_evaluation():
    with pytest.raises(ScoreError, match='stops here with ZeroDivisionError') as e: native(task('product', dict(product_id='A')), 'B', BOTH, words)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_no_credit_across_variants():
    assert rule_score(doc('X'), dict(product_id='A', sku_options=[{'color': 'red', 'size': 'l'}], attributes=[{'material': ['clay']}]), words)[0] == 2 / 3


def test_an_attribute_satisfies_a_wish_for_a_variant():
    d = doc('X', attributes={'color': ['blue']}, sku_options={'1': {'color': 'red'}})
    assert rule(d, dict(product_id='A', sku_options=[{'color': 'blue'}])) == 1 and rule(d, dict(product_id='A', sku_options=[{'color': 'red'}])) == 1


def test_keys_and_values_are_compared_to_the_letter():
    assert rule(doc('X'), dict(product_id='A', sku_options=[{'color_family': 'red'}])) == rule(doc('X', sku_options={'1': {'color': 'Red '}}), dict(product_id='A', sku_options=[{'color': 'red'}])) == 0


@pytest.mark.parametrize('damage, error', [(dict(sku_options={'1': {'color': ['red']}}), TypeError), (dict(service=None), TypeError)])
def test_documents_that_stop_the_evaluation(damage, error):
    with pytest.raises(ScoreError) as e: native(task('product', wish('A', service=['COD'])), 'X', shop(doc('X', **damage)), words)
    assert isinstance(e.value.__cause__, error)


def test_a_missing_price_stops_the_evaluation():
    d = doc('X'); del d['price']
    with pytest.raises(ScoreError) as e: native(task('product', wish('A', price=[{'less than': [None, 9]}])), 'X', shop(d), words)
    assert isinstance(e.value.__cause__, KeyError)
    assert native(task('product', wish('A')), 'X', shop(d), words).success # nobody asked for it


def test_an_attribute_that_is_text_is_taken_letter_by_letter():
    assert rule(doc('X', attributes={'material': 'clay'}), dict(product_id='A', attributes=[{'material': ['clay']}])) == 0
    assert rule(doc('X', attributes={'material': 'clay'}), dict(product_id='A', attributes=[{'material': ['c']}])) == 1


def test_a_service_that_is_text_matches_its_parts():
    assert rule(doc('X', service='unofficial'), dict(product_id='A', service=['official'])) == 1


def test_exactly_the_threshold_is_enough():
    assert budget_score([doc('A', price=240.0)], Deal(PLATFORM, 'fixed', 24_000, 20_000, 0.0, face=4_000)) == 1


def test_floating_point_fails_where_cents_fit():
    deal = Deal(PLATFORM, 'percentage', 1_000, 5_800, 58.0, percent=42, cap=10_000)
    assert budget_score([doc('A', price=100.0)], deal) == 0 and total([('9', 10_000, 1)], [deal.voucher()]) == deal.budget
    assert budget_score([doc('A', price=0.1), doc('B', price=0.2)], Deal(PLATFORM, 'fixed', 9_900, 30, 0.0, face=1)) == 0 and total([('9', 10, 1), ('9', 20, 1)], []) == 30


def test_a_shops_voucher_is_not_looked_at_within_the_budget():
    deal = Deal('shop', 'fixed', 10_000, 50_000, 0.0, face=1_000)
    assert budget_score([doc('A'), doc('B', shop_id='8')], deal) == 1 and budget_score([doc('A', price=250.5), doc('B', shop_id='8')], deal) == 0 and budget_score([doc('A', price=250.5), doc('B')], deal) == 1


def test_a_missing_voucher_stops_the_evaluation():
    with pytest.raises(ScoreError) as e: native(task('voucher', wish('A')), 'A', BOTH, words)
    assert isinstance(e.value.__cause__, TypeError)


def test_the_last_recommendation_counts_and_a_list_of_parameters_stops():
    assert last_recommendation([('recommend_product', dict(product_ids='A')), ('terminate', {}), ('recommend_product', dict(product_ids='B'))]) == 'B' and last_recommendation([('terminate', {})]) == ''
    with pytest.raises(AttributeError): last_recommendation([('recommend_product', ['A'])])


# the rest of D.2

def test_bounds_are_inclusive_and_no_bound_is_not_counted():
    price = lambda mode, lo, hi: rule(doc('X'), dict(product_id='A', price=[{mode: [lo, hi]}]))
    assert price('less than', None, 250) == price('greater than', 250, None) == price('between', 250, 250) == 1 and price('less than', None, 249) == price('between', 251, 300) == 0
    assert rule(doc('X', title='tin'), wish('A', attributes=[{'material': ['clay']}])) == 1 / 2


def test_exactly_the_least_similarity_is_enough():
    half, fifths = (lambda a, b: 0.5), (lambda a, b: 0.8)
    assert rule_score(doc('X'), wish('A'), half)[0] == 1 and rule_score(doc('X'), wish('A'), lambda a, b: 0.4999)[0] == 0
    i = task('knowledge', doc('A'), answer='mug')
    assert native(i, 'X', shop(doc('X')), fifths).success and not native(i, 'X', shop(doc('X')), lambda a, b: 0.7999).success


def test_a_product_without_variants():
    d = doc('X', sku_options={})
    assert rule(d, wish('A', attributes=[{'material': ['clay']}])) == 1 and rule(d, wish('A', sku_options=[{'color': 'red'}])) == 1 / 2


def test_more_and_fewer_ids():
    assert native(TWO, 'A,B,C,D', BOTH, words).success and native(TWO, 'A', BOTH, words).rule == 0.5 and native(TWO, 'A', BOTH, words).shop == 0
    assert native(task('product', wish('A')), 'A,B', BOTH, words).success and not native(task('product', wish('A')), 'A,B', BOTH, words).gold
    assert native(task('shop', wish('A'), wish('B')), 'A,B', shop(doc('A'), doc('B', shop_id='8')), words).success is False


def test_a_percentage_with_and_without_its_cap():
    deal = lambda budget, cap: Deal(PLATFORM, 'percentage', 10_000, budget, 0.0, percent=20, cap=cap)
    d = [doc('A', price=500.0)]
    assert [budget_score(d, deal(b, 6_000)) for b in (43_900, 44_000)] == [0, 1] and [budget_score(d, deal(b, 20_000)) for b in (39_900, 40_000)] == [0, 1]


def test_knowledge():
    i = task('knowledge', doc('A', title='life of ada lovelace the countess'), answer='Ada Lovelace')
    find = shop(doc('A', title='life of ada lovelace the countess'), doc('B', title='life of ada lovelace the countess', price=9), doc('C', description='about ADA LOVELACE'), doc('D', title='poems by the countess'))
    read = lambda ids: (n := native(i, ids, find, words)) and (n.answer, n.fields['title'], n.rule, n.success, n.gold)
    assert read('A') == (1, 1, 1, True, True) and read('B') == (1, 1, 1, True, False) and read('C') == (1, 0, .5, False, False) and read('D')[:2] == (0, 0) and read('') == read('Z') == (0, 0, 0, False, False)
    assert read('B,A')[4] is True # contained
    assert native(task('knowledge', doc('A'), answer='Two'), 'N', shop(doc('N', title='network mug')), words).answer == 1


def test_format_and_length():
    good, bad = '<think>a</think><response>b</response>', 'hello'
    assert format_score([good, bad, good, good]) == .75 and format_score([]) == 0 and format_score(['<response>b</response>'], think=False) == 1
    end, look = Turn(calls=(ToolCall('terminate', {}),)), Turn(calls=(ToolCall('find_product', {}),))
    assert length_score([look, look, look, end]) == .25 and length_score([end, look]) == length_score([]) == 0


PUBLISHED = '''GPT-4.1 59.6 62.0 46.4 30.4 48.2, o3-mini 42.0 51.3 36.8 31.6 39.2, GPT-4o 52.4 50.0 24.0 25.2 36.6, GPT-4o-mini 33.2 28.0 10.4 11.6 20.0, Gemini-2.5-Flash 49.2 39.3 32.0 22.8 35.4, Claude-4-Sonnet 48.0 51.3 37.6 24.0 39.0,
Qwen2.5-max 58.4 42.7 22.8 22.4 35.9, DeepSeek-R1 53.2 44.0 37.2 24.4 39.2, DeepSeek-V3 54.8 48.0 22.8 21.2 35.4, Qwen3-235B 49.2 40.0 28.8 14.4 32.3, Qwen3-32B 51.6 45.3 25.6 18.0 34.0, Qwen3-14B 46.0 30.0 19.2 12.4 26.6,
Qwen3-8B 40.0 22.7 13.6 11.2 21.8, Qwen3-4B 36.4 18.7 8.8 8.4 18.0, Gemma-3-27B 32.0 46.7 18.0 17.2 26.5, Gemma-3-12B 27.2 32.0 9.6 13.6 19.3, Gemma-3-4B 24.4 16.7 0 4.8 10.9, SFT 55.6 52.7 39.2 30.4 43.6, SFT+RL 60.8 46.7 53.2 33.2 48.7'''


@pytest.mark.parametrize('line', PUBLISHED.split(','), ids=lambda x: x.split()[0])
def test_the_published_average_is_over_tasks(line):
    "All 19 rows of the published table: its average is the sample-weighted one."
    *shares, avg = map(float, line.split()[1:])
    intents, n = ('product', 'knowledge', 'shop', 'voucher'), (250, 150, 250, 250)
    weighted, _ = averages(dict(zip(intents, shares)), dict(zip(intents, n)))
    assert abs(weighted - avg) <= 0.0501
    made = Native(0.0, {'title': 0.0}, False, False), Native(1.0, {'title': 1.0}, True, True)
    table = score_table((i, made[k < round(s * m / 100)]) for i, s, m in zip(intents, shares, n) for k in range(m))
    assert 100 * table.loc['sample-weighted', 'ASR'] == pytest.approx(avg, abs=0.06) # its average is of rounded shares


def test_broken_episodes_count():
    n = native(task('product', wish('A')), 'A', BOTH, words)
    t = score_table([('product', n)] * 3 + [('product', None)] + [('shop', None)] * 4)
    assert t.loc['product', 'ASR'] == .75 and t.loc['product', 'published ASR'] == 1 and t.loc['shop', 'ASR'] == 0 and math.isnan(t.loc['shop', 'published ASR'])
    assert t.loc['sample-weighted', ['planned', 'graded']].tolist() == [8, 3] and t.loc['sample-weighted', 'ASR'] == 3 / 8 and t.loc['sample-weighted', 'published ASR'] == 1 and t.loc['macro', 'CAR'] == 3 / 8


def test_native_as_a_reward():
    r = native_reward(native(TWO, 'A,B', BOTH, words))
    assert r.value == 1 and r.kind == 'success' and {v.name for v in r.parts} == {'rule', *FIELDS, 'shop'} and native_reward(native(TWO, 'B,A', BOTH, words)).value == 0


# titles

def test_similarity_is_symmetric_and_bounded():
    titles = ['stoneware mug', 'Mug, stoneware', 'tin plate', '', 'プレート 皿', 'a', '!!']
    for a, b in itertools.product(titles, titles): assert 0 <= text_similarity(a, b) <= 1 + 1e-9 and text_similarity(a, b) == text_similarity(b, a) and (a != b or text_similarity(a, b) == 1)


def test_each_title_is_encoded_once():
    seen = []
    c = Cosine(lambda ts: (seen.extend(ts), [[len(t), 1.0] for t in ts])[1])
    c('a', 'bb'); c('a', 'bb'); c('bb', 'a')
    assert seen == ['a', 'bb'] and c('a', 'a') == pytest.approx(1)


@pytest.mark.slow
def test_an_embedding_model_of_this_machine(tmp_path):
    "The loader runs on a tiny model with the architecture of the published one; the real one is not here."
    torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
    from tokenizers import Tokenizer, models, pre_tokenizers
    t = Tokenizer(models.WordLevel({w: i for i, w in enumerate('[UNK] mug plate red blue'.split())}, '[UNK]')); t.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=t, unk_token='[UNK]').save_pretrained(tmp_path)
    torch.manual_seed(0)
    transformers.Qwen3Model(transformers.Qwen3Config(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8)).save_pretrained(tmp_path)
    alike = Cosine(qwen_encoder(str(tmp_path)))
    assert alike('red mug', 'red mug') == pytest.approx(1, abs=1e-5) and alike('red mug', 'blue plate') < 0.999 and alike('red mug', 'blue plate') == alike('blue plate', 'red mug')


# verified

def test_assignment_against_all_permutations():
    for n in range(300):
        d = Draws(3, 'assign', n); k, m = 1 + d.one(5), d.one(7)
        gains = [[F(d.one(7), 1 + d.one(6)) for _ in range(m)] for _ in range(k)]
        found = assign(gains)
        used = [j for j in found if j is not None]
        assert len(set(used)) == len(used) == min(k, m)
        assert sum(gains[i][j] for i, j in enumerate(found) if j is not None) == max(sum(gains[i][j] for i, j in enumerate(p) if j < m) for p in itertools.permutations(range(max(k, m)), k))


RED, BLUE, TIN = Offer('red', '', 'a', 3_000), Offer('blue', '', 'a', 4_000), Offer('tin', '', 'b', 1_000)
def failed(*args, **kw): return {v.name for v in verified(*args, **kw).parts if not v.ok}


def test_order_does_not_matter():
    fits = [[F(1), F(0)], [F(1), F(1)]]
    for order in ((0, 1), (1, 0)): assert verified([[row[j] for j in order] for row in fits], [(RED, BLUE)[j] for j in order], budget=7_000).kind == 'success'


@pytest.mark.parametrize('why, args, kw', [('different', ([[1, 1], [1, 1]], [RED, RED]), {}), ('exist', ([[1, 0], [0, 0]], [RED, None]), {}), ('count', ([[1, 1]], [RED, BLUE]), {}), ('count', ([[1], [1]], [RED]), {}),
    ('one shop', ([[1, 0], [0, 1]], [RED, TIN]), dict(one_shop=True)), ('budget', ([[1]], [RED]), dict(budget=2_999)), ('budget', ([[1]], [RED]), dict(budget=9_999, vouchers=[Voucher(x, 'a', 'fixed', 0, face=1) for x in 'xy'])),
    ('products', ([[F(1, 2)]], [RED]), {}), ('products', ([[], []], []), {}), ('different', ([[1, 1], [1, 1]], [RED, RED._replace(variant='x')]), {})])
def test_what_is_not_right(why, args, kw):
    assert why in failed(*args, **kw) and verified(*args, **kw).value == 0


def test_a_list_of_everything_is_not_right():
    "Spam: all products of the shop, the right ones among them."
    assert failed([[1, 0, 0], [0, 1, 0]], [RED, BLUE, TIN]) == {'count'} and failed([[0, 0]], [BLUE, TIN]) >= {'count', 'products'}


def test_exact_cents_and_the_vouchers_that_were_entered():
    off = Voucher('v', PLATFORM, 'percentage', 0, percent=42)
    assert verified([[1]], [RED._replace(price=10_000)], vouchers=[off], budget=5_800).value == 1 and verified([[1]], [RED._replace(price=10_000)], budget=5_800).value == 0
    assert verified([[1]], [RED], budget=3_000, least=2_500).evidence['regret'] == 500 and 'regret' not in verified([[1]], [RED], budget=1, least=1).evidence


def test_of_all_full_assignments_the_cheapest_counts():
    both = [[1, 1], [1, 1]] # three of one, one of the other: three of the cheap one
    assert verified(both, [BLUE, RED], [3, 1], budget=13_000).evidence == dict(pairing=[1, 0], total=13_000, vouchers=[]) and verified(both, [RED, BLUE], [3, 1], budget=12_999).value == 0
    assert verified([[1, 0], [1, 1]], [BLUE, RED], [3, 1], budget=15_000).evidence['total'] == 15_000


def test_verified_against_all_pairings():
    "Success exactly when some one-to-one pairing is full and affordable, the list has the right length, and nothing comes twice."
    seen = [0, 0]
    for n in range(400):
        d = Draws(5, 'verified', n); k = 1 + d.one(3); m = k if d.one(4) else 1 + d.one(4)
        items = [Offer(f'p{d.one(6)}', '', 'ab'[d.one(2)], 100 * (1 + d.one(9))) for _ in range(m)]
        fits = [[F(1) if d.one(3) else F(1, 2) for _ in range(m)] for _ in range(k)]
        quantities, one_shop, budget = [1 + d.one(2) for _ in range(k)], not d.one(3), 100 * (3 + d.one(30))
        vouchers = [Voucher('v', ('a', PLATFORM)[d.one(2)], 'fixed', 100 * d.one(12), face=250)] * d.one(2)
        plain = m == k and len({o.product for o in items}) == m and not (one_shop and len({o.shop for o in items}) > 1)
        right = plain and any(all(fits[i][j] == 1 for i, j in enumerate(p)) and total([(items[j].shop, items[j].price, q) for j, q in zip(p, quantities)], vouchers) <= budget for p in itertools.permutations(range(m)))
        assert (verified(fits, items, quantities, one_shop, vouchers, budget).kind == 'success') == right, n
        seen[right] += 1
    assert min(seen) > 40

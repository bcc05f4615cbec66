"The terms of a shop: a reader that knows nothing but the texts finds every answer; nothing can be mistaken for something else."
import json, math, os, random, re, subprocess, sys
from collections import Counter
import pytest
from shopping_grpo.core import DataError, Draws, canonical_json
from shopping_grpo.envs.ecomrlve_shopper import Script, Shopper, open_script, unreachable
from shopping_grpo.envs.ecomrlve_terms import CLAUSES, DEPARTMENTS, OTHER, Term, clause_facts, make_terms, question, read_asked, read_terms, read_value, return_term, say_condition, search_terms, window
from shopping_grpo.grammar import load_grammar

SHOPS = range(30)


def read_rule(text):
    "(base, {condition: change}) of a rule, from its text alone."
    first, rest = text.split('. ', 1)
    numbers = re.findall(r'\d+', first)
    assert len(numbers) == 1, text
    changes = {}
    for part in rest.removesuffix(' Only what is known to apply counts.').rstrip('.').split('; '):
        m = re.fullmatch(r'(add|take off) \$?(\d+)(?: percentage points?| days?| months?| points?)? if (.+)', part, re.I)
        assert m, part
        changes[m[3]] = int(m[2]) * (1 if m[1].lower() == 'add' else -1)
    return int(numbers[0]), changes


def read_question(text):
    "(what is asked, {condition: whether it holds}) from the text of a question alone."
    ask, _, told = text.partition('?')
    out = {}
    for sentence in filter(None, (s.strip() for s in told.split('.'))):
        clause = sentence[0].lower() + sentence[1:]
        clause = clause.replace('my ', 'your ').replace('i am', 'you are').replace('i was', 'you were')
        out[clause.replace(' not ', ' ')] = ' not ' not in clause
    return ask + '?', out


def solve(rule, asked):
    base, changes = read_rule(rule)
    return base + sum(changes[c] for c, holds in read_question(asked)[1].items() if holds)


def test_answers_follow_from_the_texts_alone():
    n = 0
    for shop in SHOPS:
        for t in make_terms(shop):
            for clauses in {0, 1, 2, 3 + n % 5}:
                q = question(t, clauses, Draws(shop, t.id))
                assert solve(t.text, q.text) == q.answer, (t.text, q.text, q.answer)
                assert len(read_question(q.text)[1]) == clauses == len(q.told) and q.unit == t.unit and q.term == t.id
                n += 1
    assert n > 4000


def test_careless_readers_are_always_wrong():
    for shop in SHOPS:
        for t in make_terms(shop):
            base, changes = read_rule(t.text)
            assert len(changes) == CLAUSES and 0 not in changes.values() and len({*changes.values()}) == CLAUSES
            for clauses in range(1, CLAUSES + 1):
                q = question(t, clauses, Draws(shop, 'careless', t.id))
                told = read_question(q.text)[1]
                assert q.answer != base and q.answer > 0 and (t.unit != 'percent' or q.answer < 100)
                if not all(told.values()): assert q.answer != base + sum(changes[c] for c in told), 'conditions that are denied cancel'


def test_no_number_is_a_good_guess():
    often = Counter(question(t, 2, Draws(shop, t.id)).answer for shop in SHOPS for t in make_terms(shop))
    assert max(often.values()) < .05 * often.total()


def test_fewer_clauses_are_the_beginning_of_more():
    for shop in range(20):
        for t in make_terms(shop):
            asked = [question(t, n, Draws(shop, t.id)) for n in range(CLAUSES + 1)]
            for a, b in zip(asked, asked[1:]):
                assert b.text.startswith(a.text) and b.told[:len(a.told)] == a.told and b.holds[:len(a.holds)] == a.holds
    assert {len(question(t, 3, Draws(t.id)).holds) for t in make_terms(1)} == {1, 2, 3}


def test_no_two_terms_share_a_question_a_title_or_a_text():
    for shop in SHOPS:
        terms = make_terms(shop)
        assert len({t.asks for t in terms}) == len({t.title for t in terms}) == len({t.text for t in terms}) == len({t.id for t in terms}) == len(terms) == 40
        texts = [question(t, n, Draws(shop, n)).text for t in terms for n in range(CLAUSES + 1)]
        assert len({*texts}) == len(texts)


def test_a_title_and_a_question_find_their_term_first():
    for shop in SHOPS:
        terms = make_terms(shop, 40 + shop % 20)
        for t in terms:
            assert search_terms(terms, t.title)[0] is t and search_terms(terms, t.title.upper() + '?!', 1) == [t]
            assert search_terms(terms, question(t, shop % 8, Draws(shop, t.id)).text)[0] is t, t.asks
    assert search_terms(terms, '') == search_terms(terms, '%%% {} \0') == [] and len(search_terms(terms, 'club', 5)) == 5
    search_terms(terms, 'club ' * 10**5)


def test_a_title_inside_a_longer_one_finds_its_own_term():
    wide, narrow = (Term(id, 'prices', title, 30, 'days', 'It takes 30 days.', 'How long?', ()) for id, title in (('T01', 'Discount for members of the club'), ('T02', 'Discount for members')))
    for terms in ((wide, narrow), (narrow, wide)): assert all(search_terms(terms, t.title)[0] is t for t in terms)


def test_shops_differ_and_a_shop_is_always_the_same():
    assert len({make_terms(s) for s in SHOPS}) == len(SHOPS)
    assert len({window(make_terms(s), 'Clothing') for s in SHOPS}) > 10
    a, b = (make_terms.__wrapped__(9) for _ in range(2))
    assert a == b and a is not b and canonical_json(a) == canonical_json(b)


def test_texts_are_whole():
    for shop in SHOPS:
        for t in make_terms(shop):
            for text in (t.text, t.asks, t.title, *(say_condition(c, x) for c in t.conditions for x in (True, False))):
                assert not re.search(r'[{}#|_\n]|None|  |\.\.| ,', text) and text == text.strip() and text.isascii(), text
            assert str(t.base) in t.says and not re.search(r'\b1 (days|months|points)\b', t.text) and len(t.text) < 700


def test_plain_json_and_back():
    for shop in range(10):
        terms = make_terms(shop)
        assert read_terms(json.loads(canonical_json(terms))) == terms
        q = question(terms[shop], 5, Draws(shop))
        assert read_asked(json.loads(canonical_json(q))) == q


def test_facts_of_clauses_can_be_asked_for_and_survive_noise():
    for shop in range(30):
        for t in make_terms(shop):
            q = question(t, CLAUSES, Draws(shop, t.id))
            facts = clause_facts(t, q)
            names = [n for f in facts for n in f.names]
            assert len({*names}) == len(names) and len({f.key for f in facts}) == CLAUSES
            for i, f in zip(q.told, facts):
                assert not any(re.search(r'\d', w) for w in f.ways)
                assert any(' not' in x for x in f.exact) == (i not in q.holds) and f.names[0] in t.conditions[i].text
            text = ' '.join(f'{f.ways[0][0].upper()}{f.ways[0][1:]}.' for f in facts)
            assert f'{t.asks} {text}' == q.text


def test_a_shopper_tells_the_clause_that_the_rule_names():
    "Whoever asks with the words of the rule hears the shopper's side of that condition and of no other."
    for shop in range(4):
        for t in make_terms(shop):
            q = question(t, CLAUSES, Draws(shop, t.id))
            script = Script('POLICY', t.asks, clause_facts(t, q))
            assert unreachable(script) == [] and t.asks in open_script(script, 1.).text
            shopper = Shopper(script, open_script(script, 1.))
            for i, f in zip(q.told, script.facts):
                heard = shopper.answer(f'Is it so that {t.conditions[i].text}?')
                assert shopper.new == f.key and any(w in heard for w in f.ways), (t.conditions[i].text, heard)


def test_windows_are_those_of_the_texts():
    roots = {leaf.category['en'].split(' › ')[0] for leaf in load_grammar()[1]}
    assert {*DEPARTMENTS} == roots
    for shop in SHOPS:
        terms = make_terms(shop)
        for root in roots:
            t = return_term(terms, f'{root} › x › y')
            base, changes = read_rule(t.text)
            assert root in t.text and 'sent back' in t.text and window(terms, (root, 'x')) == window(terms, root) == base
            for c, x in changes.items(): assert window(terms, root, [c, 'the moon is full']) == base + x
        assert return_term(terms, 'Books').title.endswith(OTHER) and window(terms, ()) == window(terms, 'Books')


READS = [('15', 15), ('15 days', 15), ('15-day', 15), ('$15', 15), ('-15', -15), ('–15', -15), ('$-15', -15), ('-$15.00', -15), ('within 15 days.', 15), ('1,250 points', 1250), ('(15)', 15), ('T07: 15 days', 15), (15, 15), (15.0, 15), ('007', 7), ('+7', 7),
    ('NaN', None), ('-inf', None), ('', None), (' ', None), ('10-15', None), ('10 or 15', None), ('15.5', None), ('1e5', None), ('1E-5', None), ('1e+300', None), ('1,5', None), ('15,20', None), ('2026-11-30', None), ('fifteen', None), ('٣', None), ('²', None), ('T07', None),
    ('9' * 5000, None), ('9' * 19, None), ('1 ' * 5000, None), ('a' * 500 + ' 15', None), (True, None), (False, None), (None, None), (math.nan, None), (-math.inf, None), (1e300, None), (10**5000, None), (15.5, None), ([15], None), ({}, None), (b'15', None), ('\0', None), ('\ud800 15', 15)]

@pytest.mark.parametrize('given,value', READS, ids=range(len(READS)))
def test_reading_an_answer(given, value): assert read_value(given) == value and type(read_value(given)) is type(value)


def test_reading_knows_the_unit():
    for unit, good, bad in (('days', ('15', '15 days', '1 day', '15 business days'), ('15 weeks', '$15', '15%', '15 hours')), ('dollars', ('$15', '15 dollars', '15 USD', '15'), ('15 cents', '15 days')), ('percent', ('15%', '15 percent', '15 percentage points'), ('$15', '15 points')),
            ('months', ('15 months',), ('15 years', '15 days')), ('points', ('150 points', '150'), ('150 percent',))):
        assert all(read_value(x, unit) is not None for x in good) and not any(read_value(x, unit) is not None for x in bad), unit


def test_every_answer_is_read_as_it_is_said():
    for shop in range(20):
        for t in make_terms(shop):
            q = question(t, 4, Draws(shop, t.id))
            for said in (str(q.answer), f'{q.answer} {t.unit}', f'It is {q.answer} {t.unit}.', q.answer, float(q.answer)): assert read_value(said, t.unit) == q.answer
            assert read_value(f'-{q.answer}', t.unit) == -q.answer


def test_reading_never_raises():
    r, parts = random.Random(4), ['1', '15', '-', '.', ',', 'e', '$', '%', ' ', 'day', 'days', 'NaN', '\n', '٣', '½', '\ud800', '+', '(', '\0', '9' * 40, '−']
    for _ in range(20000):
        text = ''.join(r.choices(parts, k=r.randrange(12)))
        assert read_value(text) is None or isinstance(read_value(text, 'days'), (int, type(None)))


def test_a_shop_of_the_wrong_size_is_refused():
    for n in (0, 12, 1000):
        with pytest.raises(DataError): make_terms(1, n)
    with pytest.raises(DataError, match='Clothing'): window(make_terms(1)[:0], 'Clothing')


def test_same_bytes_under_any_hash_seed():
    code = ("from shopping_grpo.core import digest, Draws; from shopping_grpo.envs.ecomrlve_terms import *; t = make_terms(3); qs = [question(x, 5, Draws(x.id)) for x in t]; "
        "print(digest([t, [x.text for x in t], qs, [clause_facts(x, q) for x, q in zip(t, qs)], [[y.id for y in search_terms(t, q.text, 9)] for q in qs]], 64))")
    out = {subprocess.run([sys.executable, '-c', code], env=os.environ | {'PYTHONHASHSEED': s}, capture_output=True, text=True, check=True).stdout for s in ('0', '1', '77')}
    assert len(out) == 1 and len(out.pop()) == 65

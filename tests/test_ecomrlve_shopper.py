"The simulated shopper: nothing unfilled, nothing out of reach, a true ledger, nested difficulty, and noise that spares what matters."
import json, os, re, subprocess, sys
from dataclasses import asdict, replace
import pytest
from shopping_grpo.core import DataError, Draws, canonical_json, digest
from shopping_grpo.envs.ecomrlve_noise import SENSE, faithful, mend, misspell, misspellings, paraphrase
from shopping_grpo.envs.ecomrlve_persona import ALPHA, VALUED, draw_persona, persona_of, utility
from shopping_grpo.envs.ecomrlve_shopper import OPENINGS, Fact, Opening, Script, Shopper, blame, named, open_script, read_script, unreachable

FIELDS = (('material', 'made of'), ('color', 'colour'), ('size',), ('frame size',), ('price', 'budget', 'how much'), ('brand', 'maker'), ('reason', 'why'), ('date', 'when'), ('how many', 'quantity'), ('number of ports', 'ports'))
WAYS = (('the {f} should be {x}', 'it must have {x} as its {f}'), ('{x}, please', 'I think of {x}', 'nothing but {x}'), ('without {x} I do not want it',))


def script(seed, facts=None):
    "A script as it comes: values that stand nowhere else, some with a space or digits, names that are shared or lie within one another."
    d = Draws(seed, 'script')
    kind, n, out = d.pick(list(OPENINGS)), d.one(7), []
    for i in range(12):
        x = d.pick(('zor{}an', 'lemo quar{}', '${}.50', 'Vex {}-pack', 'B0{}QZ'))
        x, names = x.format('ABCDEFGHIJKL'[i] if '$' not in x else 100 + i), d.pick(FIELDS)
        ways = tuple(w.format(f=names[0], x=x) for w in d.pick(WAYS))
        must, wrong = d.one(8) == 0, d.one(8) == 0
        out.append(Fact(f'fact {i}', ways, (x,), names, must, f'the {names[0]} should be wrong{i}' if wrong and not must else ''))
    persona, switch = d.one(2), d.one(4) == 0
    return Script(kind, 'how long may I keep a brass lamp?' if kind == 'POLICY' else 'a brass lamp', tuple(out[:n if facts is None else facts]), ('what of a fez?' if kind == 'POLICY' else 'a fez') if switch else '', persona_of(draw_persona(d)) if persona else '')


def test_ten_thousand_conversations_say_what_they_claim():
    "0 unfilled slots, 0 facts neither stated nor askable, and a ledger that holds: what it calls told stands in the text, what it calls withheld does not."
    withheld = asked = corrected = 0
    for seed in range(10_000):
        s, d = script(seed), Draws(seed, 'rates')
        omit, typos = float(d.uniform()[0]), float(d.uniform()[0]) * .125
        first = open_script(s, omit, typos, seed, later=seed % 5 == 0)
        shopper, facts = Shopper(s, first, typos, seed), {f.key: f for f in s.said}
        heard = first.text
        for key, state in shopper.ledger.items():
            if key == 'about': assert (s.switch if state == 'misstated' else s.about) in heard and (s.about in heard) == (state == 'opening')
            elif state == 'opening': assert all(x in heard for x in facts[key].exact)
            elif state == 'misstated': assert facts[key].was in heard and not any(x in heard for x in facts[key].exact)
            else: assert state == 'withheld' and not any(x in heard for x in facts[key].exact)
        assert all(x in heard for x in first.exact)
        hidden = [f for f in s.said if shopper.ledger[f.key] == 'withheld']
        for f in hidden:
            for _ in s.said: # a name that several share has to be asked again
                if shopper.ledger[f.key] == 'asked': break
                text = shopper.answer(f'What is the {f.names[0]}?')
                heard += '\n' + text
                assert shopper.new and all(x in text for x in facts[shopper.new].exact)
            assert shopper.ledger[f.key] in ('asked', 'corrected'), (seed, f)
        due, words = shopper.due, shopper.interject()
        assert bool(words) == due
        heard += '\n' + words
        assert all(x in heard for f in s.said for x in f.exact) and s.about in heard and not shopper.due
        assert not re.search(r'[{}]|None|\bnan\b', heard) and '  ' not in heard and heard.count('\n') <= 1 + len(hidden) * len(s.said)
        assert blame(shopper.ledger, facts) == 'agent'
        withheld += len(hidden); asked += 'asked' in shopper.ledger.values(); corrected += bool(words)
    assert withheld > 10_000 and asked > 4_000 and corrected > 2_000


def test_without_slips_a_clause_stands_as_it_is_written():
    for seed in range(500):
        s = script(seed)
        first = open_script(s, .5, 0, seed)
        shopper = Shopper(s, first, 0, seed)
        assert all(any(w in first.text for w in f.ways) == (f.key in first.said) for f in s.said if f.key != 'persona')
        for f in s.said:
            answers = [shopper.answer(f'{f.names[0]}?') for _ in range(2)]
            told = [g for g in s.said if any(w in answers[-1] for w in g.ways)]
            assert len(told) == 1 and set(told[0].names) & set(f.names), (f, answers)


def test_the_easier_conversation_is_a_part_of_the_harder_one():
    "Withheld at a lower rate: withheld at a higher. Mistyped at a lower rate: mistyped the same way at a higher. Fewer facts: the same clauses in the same order."
    for seed in range(120):
        s = script(seed, 8)
        said = [{*open_script(s, omit, .06, seed).said} for omit in (0, .1, .4, .7, 1)]
        assert all(a >= b for a, b in zip(said, said[1:])) and len(said[0]) > len(said[-1])
        few = open_script(s, .6, .06, seed)
        assert all(x in open_script(s, 0, .06, seed).text for x in few.exact)
        texts = [open_script(s, .2, t, seed).text.split() for t in (0, .02, .05, .09, .125)]
        slips = [{(i, w) for i, (v, w) in enumerate(zip(texts[0], t, strict=True)) if v != w} for t in texts]
        assert all(a <= b for a, b in zip(slips, slips[1:]))
        keys = [open_script(replace(s, facts=s.facts[:m]), .3, 0, seed).said for m in (3, 5, 8)]
        assert keys[0] == tuple(k for k in keys[2] if k in {f.key for f in s.facts[:3]} | {'persona'}) and keys[1] == tuple(k for k in keys[2] if k in {f.key for f in s.facts[:5]} | {'persona'})
    assert len(slips[-1]) > 0


def test_rates_are_what_they_say():
    facts = tuple(Fact(f'fact {i}', (f'number {i}',), (), (f'item {i}',)) for i in range(10))
    shares = [sum(len(open_script(Script('PD', 'a lamp', facts), omit, 0, seed).said) for seed in range(300)) / 3000 for omit in (.1, .4, .8)]
    assert all(abs(1 - a - b) < .03 for a, b in zip(shares, (.1, .4, .8)))
    text, draws = 'colours ' * 400, [misspell('colours ' * 400, r, (), Draws(1)).split() for r in (.03, .125)]
    for rate, words in zip((.03, .125), draws): # six letters of each word may slip, one does; some swaps and neighbours give the word itself
        assert abs(sum(w != 'colours' for w in words) / 400 - (1 - (1 - rate) ** 6)) < .07
    assert len(text.split()) == 400


def test_slips_spare_what_matters():
    words = 'Please could you find something similar to that lovely velvet garment without buttons under forty dollars really because'.split()
    for seed in range(1500):
        d = Draws(seed, 'text')
        exact = tuple(d.sample(('velvet garment', 'forty', 'lovely'), d.one(4)))
        text = '\n'.join(' '.join([*d.sample(words, 9), d.pick(('B0A1C9', '$24.50', 'A1042', 'x_y', '16-inch', 'XL', '{slot}')), *exact]) for _ in range(1 + d.one(3)))
        new = misspell(text, .125 + float(d.uniform()[0]) / 2, exact, Draws(seed))
        assert re.findall(r'\S*[\d_{}]\S*|\n|XL', new) == re.findall(r'\S*[\d_{}]\S*|\n|XL', text) and all(new.count(x) >= text.count(x) for x in exact)
        for a, b in zip(text.split(), new.split(), strict=True): assert a == b or a.lower() not in SENSE and b.lower() in misspellings(a.lower()) and b[0].isupper() == a[0].isupper()
        assert misspell(text, 0, exact, Draws(seed)) == text
    risky = 'note thank overt unders nob mosts lessen onlyx bothe moore' # one slip away from not, than, over, under, most, only, both, more
    for seed in range(400): assert not any(w in SENSE for w in misspell(risky, 1, (), Draws(seed)).split())


def test_most_slips_can_be_mended():
    "A reader who knows the words of the templates loses next to nothing."
    words = tuple(sorted({w for frames in OPENINGS.values() for f in frames for w in re.findall("[a-z']+", f.lower().replace('{about}', ''))} | set(re.findall('[a-z]+', ' '.join(w for ways in WAYS for w in ways))) | {w for ns in FIELDS for n in ns for w in n.split()}))
    texts = [(open_script(s, .2, 0, seed).text, open_script(s, .2, .12, seed).text) for seed in range(400) for s in [replace(script(seed), persona='')]]
    bad = lambda pairs: sum(v != w for a, b in pairs for v, w in zip(a.split(), b.split(), strict=True))
    before, after = bad(texts), bad([(a, mend(b, words)) for a, b in texts])
    assert before > 1000 and after < .1 * before


def test_same_bytes_under_every_hash_seed():
    code = "import sys; sys.path[:0] = ['tests']; from test_ecomrlve_shopper import transcript; print(transcript())"
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join(filter(None, [root, os.environ.get('PYTHONPATH', '')]))
    got = {subprocess.run([sys.executable, '-c', code], cwd=root, env=os.environ | {'PYTHONHASHSEED': h, 'PYTHONPATH': path}, capture_output=True, text=True, check=True).stdout for h in ('0', '1', '4711')}
    assert got == {transcript() + '\n'}


def transcript():
    out = []
    for seed in range(60):
        s = script(seed)
        shopper = Shopper(s, open_script(s, .5, .1, seed), .1, seed)
        out += [asdict(s), asdict(open_script(s, .5, .1, seed)), [shopper.answer(f'{f.names[-1]}?') for f in s.said], shopper.interject(), shopper.state]
    return digest(out)


WRONG = Fact('wish', ('it should be blue',), ('blue',), ('color',), was='it should be red')
LAMP = Script('CART', 'a brass lamp', (WRONG,), switch='a fez')


def test_correction_and_switch_are_said_once():
    first = open_script(LAMP, 1)
    shopper = Shopper(LAMP, first)
    assert first.wrong == ('wish', 'about') and 'red' in first.text and 'a fez' in first.text and 'blue' not in first.text and 'lamp' not in first.text and shopper.due
    words = shopper.interject()
    assert words.count('a brass lamp') == words.count('a fez') == words.count('it should be blue') == words.count('it should be red') == 1
    assert shopper.interject() == '' and not shopper.due and set(shopper.ledger.values()) == {'corrected'}
    assert 'blue' in shopper.answer('Which color?') and 'red' not in shopper.answer('Which color?') and shopper.new == ''


def test_a_question_brings_the_correction_forward():
    shopper = Shopper(LAMP, open_script(LAMP))
    words = shopper.answer('Which color, really?')
    assert 'it should be blue' in words and 'it should be red' in words and shopper.new == 'wish' and shopper.ledger == {'about': 'misstated', 'wish': 'corrected'}
    rest = shopper.interject()
    assert 'a brass lamp' in rest and 'blue' not in rest and shopper.interject() == ''


def test_blame():
    mute = replace(LAMP, facts=(Fact('wish', ('it should be blue',), ('blue',)),), switch='')
    assert unreachable(mute) == ['wish'] and unreachable(LAMP) == []
    assert blame(Shopper(mute, open_script(mute, 1)).ledger, ['wish']) == 'shopper' and blame(Shopper(mute, open_script(mute)).ledger, ['wish']) == 'agent'
    shopper = Shopper(LAMP, open_script(LAMP))
    assert blame(shopper.ledger, []) == 'shopper' # the topic was never set right
    shopper.interject()
    assert blame(shopper.ledger, ['wish']) == 'agent' and blame(shopper.ledger, ['elsewhere']) == 'shopper' and blame({'wish': 'withheld'}, ['wish']) == 'agent'


def test_names_within_and_shared():
    fact = lambda key, *names: Fact(key, (f'say {key}',), (), names)
    a, b, c, d = fact('a', 'shoe size'), fact('b', 'shoe size', 'shoe'), fact('c', 'size'), fact('d', 'size', 'hat')
    s = Script('PD', 'a lamp', (a, b, c, d))
    assert unreachable(s) == []
    key = lambda q, *told: [f.key for f in named(s.facts, q, {*told})]
    assert key('Which shoe size?') == ['a'] and key('Which shoe size?', 'a') == ['b'] and key('Which size?', 'c') == ['d'] and key('SIZES of the hats') == ['d'] and key('hatsize, resize') == []
    many = Script('PD', 'a lamp', tuple(fact(str(i), 'size') for i in range(9)))
    assert unreachable(many) == [] and unreachable(replace(many, facts=(*many.facts, fact('x', ' ')))) == ['x']
    assert [f.key for f in named((fact('p', 'item 1'), fact('q', 'item 12')), 'What about item 12?')] == ['q']


def test_one_fact_a_question():
    s = Script('PD', 'a lamp', tuple(Fact(n, (f'the {n} is good',), (), (n,)) for n in ('color', 'size', 'brand')))
    shopper = Shopper(s, open_script(s, 1))
    talk = [(shopper.answer('brand color size, everything?'), shopper.new) for _ in range(4)]
    assert [new for _, new in talk] == ['brand', 'color', 'size', ''] and ['One thing at a time' in text for text, _ in talk] == [True, True, False, False]
    fresh = Shopper(s, open_script(s, 1))
    for q in ('', '?', 'anything else?', 'Is it good?', 'colorful sizeable', '\x00\ud7ff🙂' * 50, 'what ' * 5000): assert fresh.answer(q) and fresh.new == ''
    assert fresh.state == Shopper(s, open_script(s, 1)).state and 'nothing more' in fresh.answer('Which material?')


def test_scripts_are_plain_values():
    for seed in range(50): assert read_script(json.loads(canonical_json(asdict(script(seed))))) == script(seed)
    for make, message in ((lambda: Fact('k', ('a {b}',)), 'brace'), (lambda: Fact('k', ('a\nb',)), 'line break'), (lambda: Fact('k', ()), 'no clause'), (lambda: Fact('k', ('red', 'it is blue'), ('blue',)), "'blue' is not in"),
                          (lambda: Script('TEA', 'a lamp'), 'cannot open'), (lambda: Script('PD', 'a lamp', (WRONG, WRONG)), 'different keys'), (lambda: Script('PD', '{thing}'), 'brace'), (lambda: Script('PD', ''), 'about')):
        with pytest.raises(DataError, match=message): make()


def test_every_kind_has_six_openings_and_more():
    for kind in OPENINGS: assert len({open_script(Script(kind, 'a lamp'), seed=n).text for n in range(200)}) >= 6
    assert len({open_script(Script('PD', 'a lamp'), seed=n, later=True).text for n in range(300)}) > 20


SAID = "I'm looking for a scarf: it should be made of merino wool; not more than $24.50."
SPANS = ('a scarf', 'merino wool', '$24.50')


@pytest.mark.parametrize('new', ["Got a scarf in wool, not over $24.50?", "Not over $24.50, merino wool, a scarf, size 7.", "Not over $24.50, merino wool, a scarf, two please.", "$24.50, merino wool, a scarf.", "Preferably a scarf in merino wool, not over $24.50.",
    "Not over $24.50, merino woollens, a scarf.", "Not over $24.50, {material} merino wool, a scarf.", "a scarf, merino wool, not over $24.50. " * 9, '', ' \n'])
def test_a_paraphrase_that_says_something_else_falls_back(new): assert paraphrase(SAID, SPANS, lambda _: new) == SAID


def test_paraphrase():
    good = "Not over $24.50 and in merino wool, that's a scarf for me."
    assert paraphrase(SAID, SPANS, lambda prompt: good if prompt.endswith(SAID) else '') == good and faithful(SAID, SAID, SPANS)
    def broken(kind):
        def ask(_): raise kind('no answer')
        return ask
    for kind in (OSError, ValueError, RuntimeError, DataError): assert paraphrase(SAID, SPANS, broken(kind)) == SAID
    assert all(paraphrase(SAID, SPANS, lambda _: x) == SAID for x in (None, 7, b'text'))
    twice = replace(LAMP, facts=(Fact('one', ('two blue ones',), ('two',), ('a',)), Fact('other', ('two red ones',), ('two',), ('b',))), switch='')
    first = open_script(twice)
    assert paraphrase(first.text, first.exact, lambda _: 'a brass lamp: two of each') == first.text and Opening(**asdict(first)) == first


def test_persona_in_words_and_numbers():
    for seed in range(300):
        weights = draw_persona(Draws(seed))
        order = sorted((VALUED[k] for k in VALUED if VALUED[k] in persona_of(weights)), key=persona_of(weights).index)
        assert abs(sum(weights.values()) - 1) < 1e-9 and order == [VALUED[k] for k in sorted(weights, key=lambda k: -weights[k]) if VALUED[k] in order] and max(weights, key=weights.get) == next(k for k in VALUED if VALUED[k] == order[0])
        features = dict(zip(weights, map(float, Draws(seed, 'f').uniform(5))))
        assert 0 <= utility(weights, features) <= 1 == utility(weights, dict(rating=1.0)) and utility(weights, features | dict(price=1.0)) >= utility(weights, features)
    for bad in ({}, ALPHA | dict(price=0), ALPHA | dict(price=1.5), ALPHA | dict(shipping=1)):
        with pytest.raises(DataError): draw_persona(Draws(0), bad)
    with pytest.raises(DataError): utility(weights, dict(price=float('nan')))

"Masked values, verdicts, rewards and rubrics: what must never turn into a number."
import copy, json, math, operator, pickle, statistics
from dataclasses import asdict, replace
import numpy as np
import pytest
from shopping_grpo.core import ScoreError, ToolError, canonical_json, digest
from shopping_grpo.reward import Masked, Reward, Rubric, Verdict, invalid, load_reward, weighted_mean

BAD = invalid('shop_down', status=503)
USES = dict(
    add=lambda v: v + 1, radd=lambda v: 1 + v, sub=lambda v: v - 1, mul=lambda v: 2*v, div=lambda v: v/2, neg=lambda v: -v, power=lambda v: v**2, absolute=abs, rounded=round,
    as_float=float, as_int=int, truth=bool, otherwise=lambda v: v or 0.0, below=lambda v: v < 0, above=lambda v: 0 < v, largest=lambda v: max([0.0, v]), order=lambda v: sorted([1.0, v]),
    total=lambda v: sum([1.0, v]), exact=lambda v: math.fsum([1.0, v]), middle=lambda v: statistics.mean([1.0, v]), array=lambda v: np.asarray([1.0, v], dtype=float),
    mean=lambda v: np.mean([1.0, v]), index=lambda v: [1][v], isnan=math.isnan, formatted=lambda v: f'{float(v):.2f}', floor=math.floor, modulo=lambda v: v % 1, range_=lambda v: range(operator.index(v)))

@pytest.mark.parametrize('use', USES.values(), ids=USES)
def test_a_masked_value_is_never_a_number(use):
    for v in (BAD.value, Verdict('price', None).score):
        with pytest.raises(ScoreError, match='used as a number'): use(v)

def test_a_masked_value_is_not_zero_and_stays_masked():
    assert BAD.value != 0 and BAD.value != 0.0 and not BAD.valid and BAD.value == Masked('shop_down')
    for twin in (copy.deepcopy(BAD), pickle.loads(pickle.dumps(BAD)), replace(BAD, evidence={})): assert isinstance(twin.value, Masked)
    assert json.loads(canonical_json(BAD))['value'] == {'why': 'shop_down'} and digest(BAD) == digest(copy.deepcopy(BAD))
    assert 'shop_down' in repr(BAD) and asdict(BAD)['valid'] is False

@pytest.mark.parametrize('value', [0.0, 1.0, -3, float('nan'), None])
def test_whatever_comes_with_invalid_is_thrown_away(value): assert Reward(value, valid=False, kind='x').value == Masked('x')

@pytest.mark.parametrize('value', [float('nan'), float('inf'), -float('inf'), Masked('x'), None, '1'])
def test_a_valid_reward_is_a_finite_number(value):
    with pytest.raises(ScoreError, match='no finite number'): Reward(value)

def test_types_are_frozen():
    for thing, field in ((BAD, 'valid'), (BAD.value, 'why'), (Verdict('a', True), 'ok')):
        with pytest.raises(AttributeError): setattr(thing, field, True)

def test_verdict_scores():
    assert (Verdict('a', True).score, Verdict('a', False).score, Verdict('a', False, 0.4).score) == (1.0, 0.0, 0.4)
    assert isinstance(Verdict('a', None, 0.5).score, Masked)
    for score in (-0.1, 1.1, float('nan')):
        with pytest.raises(ScoreError, match=r'outside \[0, 1\]'): Verdict('a', True, score)

@pytest.mark.parametrize('reward', [BAD, Reward(-0.85, kind='wrong'), Reward(0.5, (Verdict('a', False, 0.5, {'x': [1]}), Verdict('b', None)), (Verdict('g', True),), kind='k', evidence={'é': '茶'})])
def test_rewards_survive_json(reward): assert load_reward(json.loads(canonical_json(reward))) == reward

def says(ok, score=None, name='v'): return lambda *_: None if ok == 'not asked' else Verdict(name, ok, score)

# gates, parts (weight, verdict), value, kind
RUBRICS = {
    'all right': ([True], [(1, True), (3, True)], 1.0, 'scored'),
    'weighted': ([True], [(1, True), (3, False)], 0.25, 'scored'),
    'graded part': ([True], [(1, (False, 0.5)), (1, True)], 0.75, 'scored'),
    'not asked is left out': ([True], [(1, True), (3, 'not asked'), (1, False)], 0.5, 'scored'),
    'gate only': ([True, True], [], 1.0, 'scored'),
    'gate and no part asked': ([True], [(1, 'not asked')], 1.0, 'scored'),
    'failed gate': ([True, False], [(1, True)], 0.0, 'gate_failed'),
    'failed gate beats an undecided one': ([None, False], [(1, True)], 0.0, 'gate_failed'),
    'failed gate beats an undecided part': ([False], [(1, None)], 0.0, 'gate_failed'),
    'undecided gate': ([True, None], [(1, True)], None, 'unverifiable'),
    'undecided part': ([True], [(1, True), (1, None)], None, 'unverifiable'),
}

@pytest.mark.parametrize('gates,parts,value,kind', RUBRICS.values(), ids=RUBRICS)
def test_rubric(gates, parts, value, kind):
    verifier = lambda ok: says(*ok) if isinstance(ok, tuple) else says(ok)
    r = Rubric(tuple(map(verifier, gates)), tuple((w, verifier(ok)) for w, ok in parts))('state')
    assert (r.kind, r.valid) == (kind, value is not None) and (r.value == value if r.valid else isinstance(r.value, Masked))

def test_a_rubric_without_a_criterion_pays_nothing():
    for empty in (Rubric(), Rubric(parts=((1, says('not asked')),)), Rubric(gates=(says('not asked'),))):
        with pytest.raises(ScoreError, match='nothing|without a criterion'): empty('state')

@pytest.mark.parametrize('weight', [0, -1, float('nan')])
def test_weights_are_positive(weight):
    with pytest.raises(ScoreError, match='not positive'): Rubric(parts=((weight, says(True)),))

def test_a_broken_verifier_is_an_error_and_named():
    def sees(state): return state['missing']
    def talks(state): return 'yes'
    def refuses(state): raise ToolError('no such variant')
    with pytest.raises(ScoreError, match='verifier sees broke with KeyError'): Rubric(parts=((1, sees),))({})
    with pytest.raises(ScoreError, match="verifier talks returned 'yes'"): Rubric(parts=((1, talks),))({})
    with pytest.raises(ToolError): Rubric(gates=(refuses,))({})

def test_weighted_mean_is_normalised_over_what_is_there():
    assert weighted_mean([(0.35, 1.0), (0.25, 0.0)]) == pytest.approx(0.35/0.60) and weighted_mean(iter([])) == 1.0

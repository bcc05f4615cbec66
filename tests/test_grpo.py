"""T4-T7 and T9: advantages on hand-computed groups and by brute force, atomic filters, losses, monitors."""
import math, statistics
import numpy as np, pytest, torch
from shopping_grpo.core import Draws, ScoreError
from shopping_grpo.grpo import (ADVANTAGES, ALGORITHMS, EPS, FILTERS, SHAPES, Algorithm, advantages, band, dr_grpo, gigpo, grpo, kl_k3, leave_one_out, batch_std, numbers,
                                outcome, policy_loss, success_first, token_weights, top_variance, varied)
from shopping_grpo.monitor import RULES, alarms, stop_reason, vitals
from shopping_grpo.reward import Masked

NAN, X = math.nan, Masked('shop_down')
near = lambda a, b: np.allclose(np.asarray(a, float), np.asarray(b, float), rtol=0, atol=1e-9, equal_nan=True)


# T4: tables by hand -----------------------------------------------------------------------------------------------------
TABLES = [
    (dr_grpo, [[1, 0, 0, 0]], [[.75, -.25, -.25, -.25]]),
    (dr_grpo, [[2, -1], [5, 5]], [[1.5, -1.5], [0, 0]]),
    (dr_grpo, [[1, X, 0, X]], [[.5, NAN, -.5, NAN]]),
    (dr_grpo, [[1, X, X]], [[NAN, NAN, NAN]]),
    (grpo, [[1, 0, 0, 0]], [[.75/.5001, -.25/.5001, -.25/.5001, -.25/.5001]]),
    (grpo, [[3, 1], [7, 7]], [[1/(math.sqrt(2) + 1e-4), -1/(math.sqrt(2) + 1e-4)], [0, 0]]),
    (grpo, [[1, X, 0]], [[.5/(math.sqrt(.5) + 1e-4), NAN, -.5/(math.sqrt(.5) + 1e-4)]]),
    (leave_one_out, [[1, 0, 0, 0]], [[1, -1/3, -1/3, -1/3]]),
    (leave_one_out, [[4, 1, X]], [[3, -3, NAN]]),
    (batch_std, [[1, 0], [1, 1]], [[.5/.5001, -.5/.5001], [0, 0]]),
    (batch_std, [[2, 0], [X, X]], [[1/(math.sqrt(2) + 1e-4), -1/(math.sqrt(2) + 1e-4)], [NAN, NAN]]),
]

@pytest.mark.parametrize('rule,rewards,want', TABLES)
def test_advantages_by_hand(rule, rewards, want): assert near(rule(numbers(rewards)), want)


def test_gigpo_by_hand():
    "Two of three meet again after different first turns; the third is masked and helps nobody."
    states = [[['s', 'a', 'c'], ['s', 'b', 'c'], ['s', 'a', 'c']]]
    got = gigpo(numbers([[1, 0, X]]), states, weight=.5, discount=.5)[0]
    # episodes: +-1/2. s: returns 1/4 and 0 -> +-1/8; a, b alone; c: 1 and 0 -> +-1/2
    assert near(got[0], [.5 + .5*.125, .5, .5 + .5*.5]) and near(got[1], [-.5 - .5*.125, -.5, -.5 - .5*.5]) and np.isnan(got[2]).all()


def test_every_algorithm_of_the_table_gives_advantages():
    rewards, states = numbers([[1, 0, 0, 0]]), [[['s', 'a'], ['s', 'b'], ['s', 'b'], ['s']]]
    for name, a in ALGORITHMS.items():
        got = advantages(a, rewards, states)[0]
        episode = ADVANTAGES[a.advantage](rewards)[0]
        assert [len(t) for t in got] == [2, 2, 2, 1]
        if a.step_weight == 0: assert all(near(t, [e] * len(t)) for t, e in zip(got, episode)), name


# T4: brute force --------------------------------------------------------------------------------------------------------
def slow_advantage(name, groups):
    "The textbook, one number at a time."
    everyone = [r for g in groups for r in g if r is not None]
    out = []
    for g in groups:
        known = [r for r in g if r is not None]
        for i, r in enumerate(g):
            if r is None or len(known) < 2: out.append(NAN); continue
            mean = statistics.fmean(known)
            if name == 'leave_one_out': out.append(r - statistics.fmean([q for j, q in enumerate(g) if j != i and q is not None]))
            else: out.append((r - mean) / dict(dr_grpo=1, grpo=statistics.stdev(known) + EPS, batch_std=statistics.stdev(everyone) + EPS)[name])
    return out


@pytest.mark.parametrize('name', ADVANTAGES)
def test_advantages_by_brute_force(name):
    for case in range(60):
        d = Draws(case, 'advantages')
        groups = [[None if d.uniform()[0] < .2 else float(d.one(4) - 1) for _ in range(4)] for _ in range(3)]
        if sum(r is not None for g in groups for r in g) < 2: continue
        got = ADVANTAGES[name](numbers([[X if r is None else r for r in g] for g in groups]))
        assert near(got.ravel(), slow_advantage(name, groups))


def slow_gigpo(rewards, states, weight, discount):
    "Every turn against every turn of its group."
    episode = slow_advantage('dr_grpo', [rewards])
    out = []
    for i, trail in enumerate(states):
        row = []
        for t, s in enumerate(trail):
            mine = [rewards[j] * discount**(len(states[j]) - 1 - u) for j in range(len(states)) if rewards[j] is not None for u, q in enumerate(states[j]) if q == s]
            own = None if rewards[i] is None else rewards[i] * discount**(len(trail) - 1 - t)
            row.append(NAN if own is None else episode[i] + (weight * (own - statistics.fmean(mine)) if len(mine) > 1 else 0))
        out.append(row)
    return out


def test_gigpo_by_brute_force():
    for case in range(60):
        d = Draws(case, 'gigpo')
        rewards = [None if d.uniform()[0] < .15 else float(d.one(3)) for _ in range(5)]
        if sum(r is not None for r in rewards) < 2: continue
        states = [['s'] + [f'{t}{d.pick("abc")}' for t in range(d.one(4))] for _ in range(5)]
        got = gigpo(numbers([[X if r is None else r for r in rewards]]), [states], .7, .9)[0]
        for g, want in zip(got, slow_gigpo(rewards, states, .7, .9)): assert near(g, want)


def test_advantages_sum_to_zero_and_do_not_see_shifts():
    d = Draws(1, 'shift')
    r = d.uniform(6, 8)
    for rule in ADVANTAGES.values():
        assert np.allclose(rule(r).sum(1), 0) and np.allclose(rule(r + 17), rule(r))


# what is masked ---------------------------------------------------------------------------------------------------------
def row(success=False, valid=True, end='purchased', refused=0, parts=None, value=None, actions=(), task='t'):
    steps = [dict(action=dict(name='search', args={'query': a}), error=False, observation='') for a in actions]
    return dict(task_key=task, success=success, outcome=end, guard_rejections=refused, n_steps=len(steps), steps=steps,
        reward=dict(value=(float(success) if value is None else value) if valid else None, valid=valid, kind='success' if success else 'x', parts=parts or {}, gates={}))


@pytest.mark.parametrize('name', SHAPES)
def test_an_infrastructure_failure_is_masked_by_type(name):
    paid = SHAPES[name](row(valid=False, end='error'))
    assert isinstance(paid, Masked)
    with pytest.raises(ScoreError): paid + 0
    assert np.isnan(numbers([[paid, 1.0]])[0, 0])


@pytest.mark.parametrize('end', ['stopped', 'loop', 'max_turns', 'max_tokens', 'abstained', 'answered', 'max_time'])
def test_a_failure_of_the_model_is_a_valid_negative(end):
    "It has a number, below a success, and its group is trained on."
    rows = [row(True, parts={'a': 1.0}), row(end=end, refused=3)]
    paid = numbers([[success_first(r) for r in rows]])
    assert not np.isnan(paid).any() and paid[0, 1] < 0 < paid[0, 0] and varied(numbers([[outcome(r) for r in rows]])).all()
    assert dr_grpo(paid)[0, 1] < 0


def test_success_dominates_whatever_the_parts():
    for case in range(300):
        d = Draws(case, 'shape')
        fail = row(end=d.pick(['purchased', 'stopped', 'loop']), refused=d.one(30), parts={i: d.uniform()[0] for i in range(d.one(6))})
        won = row(True, refused=d.one(30), parts={0: 1.0})
        assert success_first(won) > .85 and success_first(fail) < .15


# T5, T6: groups are whole, and the outcome decides ---------------------------------------------------------------------
ATOMIC = [([[1, 0, 0, 0]], [True]), ([[0, 0, 0, 0]], [False]), ([[1, 1, 1, 1]], [False]), ([[1, X, X, 0]], [True]), ([[1, X, X, X]], [False]), ([[X, X, X, X]], [False]),
          ([[1, 0, 0, 0], [0, 0, 0, 0]], [True, False]), ([[1, 1], [0, 1], [0, 0]], [False, True, False])]

@pytest.mark.parametrize('groups,keep', ATOMIC)
def test_groups_are_atomic(groups, keep):
    "[1,0,0,0] survives with all four; the answer of a filter is one bit a group."
    assert varied(numbers(groups)).tolist() == keep
    for rule in FILTERS.values():
        got = rule(numbers(groups))
        assert got.shape == (len(groups),) and got.dtype == bool


@pytest.mark.parametrize('shaped', [[.1, .07, -.1, .03], [1.0, .93, .98, .9], [0, 0, 0, 1e-3], [-.2, -.1, 0, .1]])
def test_a_group_with_variance_of_the_shaped_score_only_is_dropped(shaped):
    won = [float(s > .85) for s in shaped]
    assert np.std(shaped) > 0 and not any(f(numbers([won]))[0] for n, f in FILTERS.items() if n != 'everything')


def test_band_and_variance_filters_by_brute_force():
    for case in range(80):
        won = (Draws(case, 'filters').uniform(6, 8) < Draws(case, 'rates').uniform(6)[:, None]).astype(float)
        assert band(won).tolist() == [.2 <= g.mean() <= .8 for g in won]
        keep = top_variance(won, .9)
        var = won.var(1, ddof=1) if won.size else []
        kept = sorted(var[keep], reverse=True)
        assert sum(kept) >= .9 * var.sum() - 1e-9 and (not kept or sum(kept[:-1]) < .9 * var.sum()) and (not (~keep).any() or not kept or max(var[~keep]) <= min(kept) + 1e-12)


# losses -----------------------------------------------------------------------------------------------------------------
def slow_loss(logp, old, adv, mask, a, limit):
    "One token at a time."
    total, B = 0., len(logp)
    n_all, n_seq = sum(map(sum, mask)), sum(any(m) for m in mask)
    for b in range(B):
        on = [t for t, m in enumerate(mask[b]) if m]
        for t in on:
            r = math.exp(logp[b][t] - old[b][t]) if a.ratio == 'token' else math.exp(sum(logp[b][u] - old[b][u] for u in on) / len(on))
            A = adv[b][t]
            if a.clip == 'weight': one = -min(r, 1 + a.high) * A * logp[b][t]
            else: one = -min(r * A, min(max(r, 1 - a.low), 1 + a.high) * A)
            total += one / dict(token=n_all, sequence=len(on) * n_seq, constant=B * limit)[a.mean]
    return total


@pytest.mark.parametrize('name', ALGORITHMS)
def test_loss_by_brute_force(name):
    a = ALGORITHMS[name]
    for case in range(12):
        g = torch.Generator().manual_seed(case)
        logp = -torch.rand(3, 5, generator=g, dtype=torch.float64) * 3
        old, adv = logp + torch.randn(3, 5, generator=g, dtype=torch.float64) * (.3 if a.ratio == 'token' else 5e-4), torch.randn(3, 5, generator=g, dtype=torch.float64)
        mask = (torch.rand(3, 5, generator=g) < .7).long()
        mask[0, 0] = 1
        got, seen = policy_loss(logp, old, adv, token_weights(mask, a.mean, 9).double(), a)
        assert abs(got.item() - slow_loss(logp.tolist(), old.tolist(), adv.tolist(), mask.tolist(), a, 9)) < 1e-6 and seen['tokens'] == mask.sum()


@pytest.mark.parametrize('name', ALGORITHMS)
def test_pieces_of_an_update_add_up(name):
    "T7 for the loss: eight pieces of one are one piece of eight, also when their lengths differ."
    a, g = ALGORITHMS[name], torch.Generator().manual_seed(3)
    mask = (torch.rand(8, 6, generator=g) < .5).long()
    old, adv = -torch.rand(8, 6, generator=g, dtype=torch.float64), torch.randn(8, 6, generator=g, dtype=torch.float64)
    weight, grads = token_weights(mask, a.mean, 6).double(), []
    for size in (8, 1):
        x = (old + .1).requires_grad_()
        for i in range(0, 8, size): policy_loss(x[i:i + size], old[i:i + size], adv[i:i + size], weight[i:i + size], a)[0].backward()
        grads.append(x.grad)
    assert torch.allclose(*grads, rtol=0, atol=1e-12)


def test_on_policy_gradient_is_the_policy_gradient():
    "At ratio 1 nothing is clipped, and every ratio method has the gradient of advantage times log-prob."
    g = torch.Generator().manual_seed(0)
    old, adv = -torch.rand(4, 6, generator=g), torch.randn(4, 1, generator=g).expand(4, 6)
    weight = token_weights(torch.ones(4, 6), 'sequence')
    for a in ALGORITHMS.values():
        x = old.clone().requires_grad_()
        policy_loss(x, old, adv, weight, a)[0].backward()
        assert torch.allclose(x.grad, -adv * weight, atol=1e-7)


def test_a_masked_token_has_no_part_in_loss_or_gradient():
    x = torch.zeros(1, 3).requires_grad_()
    adv, old = torch.tensor([[1., NAN, 1.]]), torch.tensor([[0., -50., 0.]])
    loss, _ = policy_loss(x, old, adv, token_weights(torch.tensor([[1, 0, 1]]), 'token'), ALGORITHMS['dapo'])
    loss.backward()
    assert loss.item() == -1 and x.grad[0, 1] == 0


def test_kl_estimate_is_unbiased_and_not_negative():
    for case in range(20):
        g = torch.Generator().manual_seed(case)
        p, q = torch.rand(2, 7, generator=g, dtype=torch.float64).softmax(-1)
        k = kl_k3(p.log(), q.log())
        assert (k >= 0).all() and abs((p * k).sum() - (p * (p / q).log()).sum()) < 1e-12


def test_unknown_choices_are_named():
    with pytest.raises(ScoreError, match='advantage .ppo. is unknown; choose one of grpo'): Algorithm('ppo')
    with pytest.raises(ScoreError, match='mean .median. is unknown'): Algorithm(mean='median')


# T9: monitors -----------------------------------------------------------------------------------------------------------
def trace(seed, drop=60, steps=80, **curves):
    "Signs by straight lines with 5 % noise; success is flat until `drop`, then falls in ten steps."
    d = Draws(seed, 'trace')
    curves = dict(success=[(0, .5), (drop, .52), (drop + 10, .1)]) | curves
    value = lambda points, s: float(np.interp(s, *zip(*points))) * (1 + .05 * (2 * d.uniform()[0] - 1))
    return [{name: value(points, s) for name, points in curves.items()} for s in range(steps)]

COLLAPSES = dict(
    echo_variance=dict(reward_std=[(0, .45), (30, .42), (45, .05)], entropy=[(0, .5), (30, .45), (50, .04)], grad_norm=[(0, .3), (50, .4), (60, 6)]),
    echo_ngrams=dict(distinct=[(0, .4), (30, .35), (45, .05)], reward_std=[(0, .45), (30, .4), (48, .04)], entropy=[(0, .5), (80, .3)]),
    echo_repeats=dict(repeats=[(0, .08), (25, .1), (45, .7)], effective=[(0, .7), (30, .6), (50, .05)]),
    template=dict(dependence=[(0, .4), (30, .35), (50, .02)], entropy=[(0, .5), (80, .5)], reward_std=[(0, .45), (80, .4)]),
    template_slow=dict(dependence=[(0, .3), (58, .01)], entropy=[(0, .5), (80, .6)]),
    drift=dict(entropy=[(0, .4), (35, .42), (58, 1.85), (75, 6)], mismatch=[(0, 1e-5), (40, .01), (56, .5)], clipped=[(0, .01), (50, .3), (60, .6)]))
HEALTHY = dict(
    learns=dict(success=[(0, .3), (80, .95)], entropy=[(0, .5), (80, .03)], reward_std=[(0, .45), (80, .05)], effective=[(0, .9), (80, .1)], distinct=[(0, .4), (80, .1)],
        repeats=[(0, .1), (80, .02)], dependence=[(0, .2), (80, .4)], clipped=[(0, .01), (80, .05)], mismatch=[(0, 1e-5), (80, 1e-5)], grad_norm=[(0, .4), (80, .2)]),
    stands=dict(success=[(0, .5), (80, .52)], entropy=[(0, .3), (80, .2)], reward_std=[(0, .4), (80, .35)], effective=[(0, .7), (80, .5)], distinct=[(0, .3), (80, .25)], dependence=[(0, .3), (80, .3)]),
    noisy=dict(success=[(0, .4), (20, .35), (40, .5), (80, .6)], entropy=[(0, .3), (40, .5), (80, .25)], grad_norm=[(0, .3), (30, 1.0), (80, .3)], repeats=[(0, .05), (80, .12)]))


@pytest.mark.parametrize('name', COLLAPSES)
def test_monitors_fire_before_the_drop(name):
    for seed in range(5):
        history = trace(seed, **COLLAPSES[name])
        stop = next((i for i in range(len(history)) if stop_reason(history[:i + 1])), None)
        assert stop is not None and 10 < stop < 62, (name, stop)


@pytest.mark.parametrize('name', HEALTHY)
def test_monitors_leave_a_good_run_alone(name):
    for seed in range(5):
        history = trace(seed, **HEALTHY[name])
        assert not any(stop_reason(history[:i + 1]) for i in range(len(history))), name


def batch(collapse, seed):
    "Episodes of 8 tasks x 6 attempts; from 0 (shops by the request) to 1 (collapsed)."
    def episode(kind, t, a):
        d = Draws(seed, kind, t, a)
        gone = d.uniform()[0] < collapse
        if not gone: actions = [f'task{t} noun{t} colour{d.one(3)}', f'open{t} {d.one(4)}', f'take{t}']
        elif kind == 'echo': actions = ['cheap mug'] * 4
        else: actions = [f'word{d.one(500)} word{d.one(500)}' for _ in range(3)]
        return row(bool(d.uniform()[0] < (.5 if not gone else .25)), actions=actions, task=f't{t}')
    return lambda kind: [[episode(kind, t, a) for a in range(6)] for t in range(8)]


@pytest.mark.parametrize('kind,sign', [('echo', 'distinct falls'), ('echo', 'repeats rises'), ('template', 'dependence falls')])
def test_signs_of_real_episodes_lead_to_alarms(kind, sign):
    history = []
    for step in range(24):
        groups = batch(min(1, max(0, step - 8) / 8), step)(kind)
        history.append(vitals(groups, numbers([[outcome(r) for r in g] for g in groups])) | dict(success=.5))
    assert sign in alarms(history) and not alarms(history[:9])


def test_a_step_without_a_scored_episode_is_no_number():
    groups = [[row(valid=False, end='error', actions=['a'])] * 2]
    got = vitals(groups, numbers([[outcome(r) for r in g] for g in groups]))
    assert got['success'] is got['reward'] is got['reward_std'] is None and got['invalid'] == 1 and got['effective'] == 0
    assert stop_reason([got] * 20) and {r.sign for r in RULES} <= set(got) | {'entropy', 'clipped', 'mismatch', 'grad_norm'}

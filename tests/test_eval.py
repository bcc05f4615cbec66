"Statistics: every estimate, interval and test against enumeration, simulation or a hand computation."
import itertools, math
import numpy as np, pandas as pd, pytest
from shopping_grpo.core import DataError, Draws
from shopping_grpo.eval import (Interval, bootstrap, caveat, check_frame, compare, compare_table, counts, holm, mcnemar, n_needed,
                                paired, pass_at_k, pass_hat_k, pass_table, pooled, power, seeds_table, strata, summary, task_bootstrap, verdict, wilson)

def frame(won, valid=None, **columns):
    "Episodes from a (tasks, attempts) array of successes; columns hold one value per task."
    won = np.atleast_2d(np.asarray(won, bool).T).T
    ok = np.ones_like(won) if valid is None else np.asarray(valid, bool).reshape(won.shape)
    n, k = won.shape
    def outcome(i, j): return 'error' if not ok[i, j] else 'purchased' if won[i, j] else 'stopped'
    return pd.DataFrame([dict(task_key=f't{i:04d}', attempt=j, success=bool(won[i, j] and ok[i, j]), valid=bool(ok[i, j]),
                              reward=float(won[i, j]) if ok[i, j] else math.nan, outcome=outcome(i, j), n_steps=5+j,
                              **{c: v[i] for c, v in columns.items()}) for i in range(n) for j in range(k)])

def pair(both, wins, losses, neither):
    "Two runs with these numbers of tasks solved by both, by B alone, by A alone, by none."
    a = [1]*both + [0]*wins + [1]*losses + [0]*neither
    b = [1]*both + [1]*wins + [0]*losses + [0]*neither
    return frame(a), frame(b)

def unpaired_p(x, y, n, yates=False):
    "Two-sided p of the two-proportion z-test with n tasks in each run: what one must not use on common tasks."
    m = (x + y) / (2*n)
    gap = max(0, abs(x - y)/n - (1/n if yates else 0))
    return math.erfc(gap / math.sqrt(2*m*(1-m)/n) / math.sqrt(2)) if 0 < m < 1 else 1.0

# S-1

def test_pass_k_is_the_share_of_draws():
    for n in range(1, 9):
        for c in range(n + 1):
            attempts = [1]*c + [0]*(n-c)
            for k in range(1, n + 1):
                draws = list(itertools.combinations(attempts, k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)
                assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws), abs=1e-12)

def test_pass_k_is_unbiased():
    p, n = .37, 6
    chance = [math.comb(n, c) * p**c * (1-p)**(n-c) for c in range(n + 1)]
    for k in range(1, n + 1):
        assert sum(w*pass_at_k(n, c, k) for c, w in enumerate(chance)) == pytest.approx(1 - (1-p)**k)
        assert sum(w*pass_hat_k(n, c, k) for c, w in enumerate(chance)) == pytest.approx(p**k)

def test_too_few_attempts_are_nan_and_never_one():
    for k in range(1, 9):
        for n in range(k):
            for c in range(n + 1): assert math.isnan(pass_at_k(n, c, k)) and math.isnan(pass_hat_k(n, c, k))
    f = frame([[1, 1], [1, 1], [1, 0]], valid=[[1, 0], [0, 0], [1, 1]])
    one, two = pass_table(f, draws=200).itertuples()
    assert (one.tasks, one.short, two.tasks, two.short) == (2, 1, 1, 2)
    assert (two.pass_at, two.pass_hat) == (1, 0) and one.pass_at == one.pass_hat == .75
    none = pass_table(frame([[1, 1]], valid=[[1, 0]]), ks=[2]).iloc[0]
    assert none.short == 1 and math.isnan(none.pass_hat) and math.isnan(none.pass_hat_high)

@pytest.mark.parametrize('n,c,k', [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(DataError): pass_hat_k(n, c, k)

# S-2: 2,000 simulated runs each; the Monte Carlo error of a coverage of 95 % is half a point

RUNS = 2000

@pytest.mark.parametrize('n,p', [(30, .5), (50, .2), (100, .6), (200, .9), (1000, .03)])
def test_wilson_covers(n, p):
    won = np.random.default_rng(n).binomial(n, p, RUNS)
    ends = {w: wilson(int(w), n) for w in set(won.tolist())}
    assert .93 <= np.mean([ends[w].low <= p <= ends[w].high for w in won.tolist()]) <= .97

def test_wilson_solves_its_equation_and_stays_in_range():
    z = 1.959963984540054
    for n in (1, 7, 40):
        for s in range(n + 1):
            i = wilson(s, n)
            assert 0 <= i.low <= i.value <= i.high <= 1
            for end in (i.low, i.high): # (p̂ - p)² = z² p(1-p)/n
                assert (i.value - end)**2 == pytest.approx(z*z*end*(1-end)/n, abs=1e-12)

def test_task_bootstrap_covers_and_drawing_episodes_does_not():
    rng, n, k = np.random.default_rng(1), 120, 4
    tasks = episodes = 0
    for s in range(RUNS):
        won = rng.binomial(k, rng.beta(1, 1.5, n)) # true mean .4
        i, j = bootstrap(won, np.full(n, k), seed=s, draws=600), wilson(int(won.sum()), n*k)
        tasks += i.low <= .4 <= i.high; episodes += j.low <= .4 <= j.high
    assert .93 <= tasks/RUNS <= .97 and episodes/RUNS < .88

def test_clustered_bootstrap_covers_and_drawing_tasks_does_not():
    rng, families, size = np.random.default_rng(2), 120, 4
    clustered = tasks = 0
    for s in range(RUNS):
        won = rng.random((families, size)) < rng.beta(1, 1.5, (families, 1))
        i = bootstrap(won.sum(1), np.full(families, size), seed=s, draws=600)
        j = bootstrap(won.ravel(), np.ones(families*size), seed=s, draws=300)
        clustered += i.low <= .4 <= i.high; tasks += j.low <= .4 <= j.high
    assert .93 <= clustered/RUNS <= .97 and tasks/RUNS < .88

def test_frames_reach_the_bootstrap_that_was_simulated():
    won = np.array([[1, 0], [1, 1], [0, 0], [1, 0]]); ok = np.array([[1, 1], [1, 0], [1, 1], [1, 1]])
    f = frame(won, ok, family=['x', 'y', 'x', 'y'])
    assert task_bootstrap(f, seed=3) == bootstrap([1, 1, 0, 1], [2, 1, 2, 2], seed=3)
    assert task_bootstrap(f, clusters='family', seed=3) == bootstrap([1, 2], [4, 3], seed=3)
    assert task_bootstrap(f, 'reward', seed=3).value == 3/7

def test_clusters_must_partition_the_tasks():
    f = frame([[1, 0], [1, 1]], family=['x', 'y'])
    torn, lost = f.assign(family=['x', 'z', 'y', 'y']), f.assign(family=['x', 'x', None, None])
    with pytest.raises(DataError, match='t0000.*two values of family'): task_bootstrap(torn, clusters='family')
    with pytest.raises(DataError, match='t0001.*has no family'): task_bootstrap(lost, clusters='family')
    with pytest.raises(DataError, match='no column brand'): task_bootstrap(f, clusters='brand')
    with pytest.raises(DataError, match='t0000, attempt 1.*no price'): task_bootstrap(f.assign(price=[1, math.nan, 2, 3]), 'price')

def test_same_seed_same_interval_whatever_the_row_order():
    f = frame(Draws(0, 'won').uniform(50, 3) < .6)
    f['reward'] = Draws(0, 'reward').uniform(150)
    first = task_bootstrap(f, 'reward', seed=7)
    for s in range(5): assert task_bootstrap(f.iloc[Draws(s, 'rows').perm(len(f))], 'reward', seed=7) == first
    assert task_bootstrap(f, 'reward', seed=8) != first

def test_slices_of_the_bootstrap_are_one_stream():
    num = Draws(0, 'num').uniform(3000) # 3,000 units and 1,000 draws take three slices
    pick = Draws(5, 'bootstrap').ints(3000, 1000, 3000)
    ends = np.quantile(num[pick].mean(1), [.025, .975])
    assert bootstrap(num, np.ones(3000), seed=5, draws=1000)[1:] == pytest.approx(ends, abs=1e-12)

def test_tasks_that_all_agree_still_have_an_interval():
    for won, end in ((np.ones((12, 4)), 12), (np.zeros((12, 4)), 0)):
        s = summary(frame(won), 48, draws=200).iloc[0]
        for c in ('success_scored', 'success_planned'): assert (s[c+'_low'], s[c+'_high']) == wilson(end, 12)[1:]
    half = summary(frame([[1, 0]]*12), 24, draws=200).iloc[0]
    assert half.success_scored_low < .3 and half.success_scored_high > .7

# S-3

def test_mcnemar_counts_coin_sequences():
    for n in range(13):
        margins = [abs(2*sum(s) - n) for s in itertools.product((0, 1), repeat=n)]
        for wins in range(n + 1):
            assert mcnemar(wins, n - wins) == pytest.approx(sum(m >= abs(2*wins - n) for m in margins) / 2**n, abs=1e-15)

def test_mcnemar_is_the_binomial_for_large_counts():
    for wins, losses in [(60, 40), (250, 300), (1000, 1), (700, 800)]:
        n = wins + losses # the tail again, summed in logarithms
        logs = [math.lgamma(n+1) - math.lgamma(i+1) - math.lgamma(n-i+1) - n*math.log(2) for i in range(min(wins, losses) + 1)]
        tail = math.fsum(map(math.exp, logs))
        assert mcnemar(wins, losses) == pytest.approx(min(1, 2*tail), rel=1e-8) and mcnemar(wins, losses) == mcnemar(losses, wins)

def test_paired_p_is_mcnemar_of_the_discordant_tasks():
    c = paired(*pair(80, 12, 9, 99), draws=500)
    assert (c.wins, c.ties, c.losses, c.tasks) == (12, 179, 9, 200) and c.p == mcnemar(12, 9) == pytest.approx(.6636, abs=1e-4)

def test_wins_over_all_attempts_keep_the_level():
    rng, n, k, sims = np.random.default_rng(3), 80, 4, 2000
    chance = rng.beta(.5, .5, (sims, n))
    gain = rng.binomial(k, chance) - rng.binomial(k, chance)
    assert np.mean([mcnemar(int((g > 0).sum()), int((g < 0).sum())) < .05 for g in gain]) <= .05 + 3*math.sqrt(.05*.95/sims)

# S-4

def test_paired_sees_what_unpaired_misses():
    a, b = pair(100, 14, 2, 84)
    assert unpaired_p(102, 114, 200) > .2 and wilson(102, 200).high > wilson(114, 200).low
    c = paired(a, b)
    assert c.p < .01 and c.delta.low > 0 and verdict(c) == 'better' and verdict(paired(b, a)) == 'worse'

def test_paired_refuses_what_unpaired_claims():
    a, b = pair(0, 111, 90, 0) # they disagree everywhere
    assert unpaired_p(90, 111, 201) < .05
    c = paired(a, b)
    assert c.p > .1 and c.delta.low < 0 < c.delta.high and verdict(c) == 'tied'

def test_swapping_the_runs_swaps_everything():
    a, b = frame(Draws(1, 'a').uniform(90, 3) < .5), frame(Draws(1, 'b').uniform(90, 3) < .6)
    x, y = paired(a, b), paired(b, a)
    assert (x.wins, x.losses, x.p) == (y.losses, y.wins, y.p)
    assert x.delta.value == pytest.approx(-y.delta.value) and x.delta.low == pytest.approx(-y.delta.high, abs=.005)
    assert x.delta.value == pytest.approx(b.success.mean() - a.success.mean()) == x.b - x.a

def test_the_reward_change_is_b_minus_a():
    a, b = pair(10, 12, 2, 16)
    c = paired(a, b.assign(reward=b.reward + 2), draws=500)
    assert c.reward.value == pytest.approx(2.25) and c.delta.value == .25 and c.reward.low > 2 > c.delta.high

def test_paired_clusters_widen_the_interval():
    family = np.repeat(np.arange(20), 10)
    shift = np.repeat(Draws(0, 'shift').uniform(20) < .5, 10) # whole families gain or lose together
    a, b = frame(~shift, family=family), frame(shift, family=family)
    single, grouped = paired(a, b), paired(a, b, clusters='family')
    assert grouped.units == 20 and grouped.tasks == 200 and single.units == 200
    assert grouped.delta.high - grouped.delta.low > 2 * (single.delta.high - single.delta.low)

def test_families_are_drawn_where_the_base_knows_them():
    family = [str(i // 10) for i in range(100)]
    won = np.arange(100) % 2 == 0
    a, b = frame(won, family=family), frame(won | (np.arange(100) < 20), family=family)
    units = lambda x, y, **k: compare({'a': x, 'b': y}, **k).units[0]
    assert units(a, b) == 10 and units(a.drop(columns='family'), b) == 100 and units(a.assign(family=[None, *family[1:]]), b) == 100 and units(a, b, clusters='task_key') == 100
    assert 'by drawing families of tasks' in compare_table({'a': a, 'b': b}, {'a': 100, 'b': 100}) and 'by drawing tasks;' in compare_table({'a': frame(won), 'b': frame(won)}, {'a': 100, 'b': 100})

def test_training_seeds_become_attempts_of_a_method():
    rng = Draws(0, 'seeds')
    runs = {f'{m}-{s}': frame(rng.uniform(40, 2) < .5) for m in ('sft', 'grpo') for s in (0, 2, 10)} | {'rule': frame([1, 0]), 'lone-1': frame([1, 0]), 'x-y': frame([1, 0])}
    found = pooled(runs)
    assert list(found) == ['sft', 'grpo']
    for m, f in found.items():
        assert len(f) == 240 and sorted(f.attempt.unique()) == list(range(6)) and not f.duplicated(['task_key', 'attempt']).any()
        assert (f[f.attempt.isin([4, 5])].success.values == runs[f'{m}-10'].success.values).all() # seeds in order of their number
        assert seeds_table(found)[m].to_dict() == {s: runs[f'{m}-{s}'].success.mean() * 100 for s in (0, 2, 10)}
    c = paired(found['sft'], found['grpo'])
    assert c.tasks == 40 and c.episodes == 240 and c.delta.value == pytest.approx(np.mean([runs[f'grpo-{s}'].success.mean() - runs[f'sft-{s}'].success.mean() for s in (0, 2, 10)]))

def test_verdict_needs_interval_and_p_and_one_direction():
    c = paired(*pair(100, 14, 2, 84), draws=500)
    def change(**new): return type(c)(**vars(c) | new)
    assert verdict(c) == 'better' and verdict(c, p=.05) == 'tied'
    assert verdict(change(delta=Interval(.06, 0., .1))) == 'tied'
    assert verdict(change(delta=Interval(.06, math.nan, math.nan))) == 'tied'
    assert verdict(change(wins=2, losses=14)) == 'tied' # more losses, yet a higher mean

# S-5

def test_planned_is_scored_errored_invalid_and_missing():
    f = frame([1, 1, 0, 0, 1], valid=[1, 1, 1, 0, 0])
    f.loc[4, 'outcome'] = 'purchased' # bought, but the reward could not be verified
    assert counts(f, 7) == dict(planned=7, done=5, scored=3, errored=1, invalid=1, missing=2)
    s = summary(f, 7).iloc[0]
    assert (s.success_scored, s.success_planned) == (2/3, 2/7)
    assert (s.success_planned_low, s.success_planned_high) == wilson(2, 7)[1:]
    with pytest.raises(DataError, match='5 episodes for 4 planned'): counts(f, 4)

@pytest.mark.parametrize('k', [1, 4])
def test_an_error_moves_between_the_counts_and_nothing_else(k):
    won = Draws(0, 'won').uniform(60, k) < .5
    lost = ~won & (Draws(0, 'lost').uniform(60, k) < .4)
    whole, holed = summary(frame(won), 60*k).iloc[0], summary(frame(won, ~lost), 60*k).iloc[0]
    assert holed.errored == lost.sum() > 0 and holed.scored == 60*k - lost.sum() and holed.planned == whole.planned
    assert holed.success_scored == won.sum() / (~lost).sum() > whole.success_scored
    same = ['success_planned', 'success_planned_low', 'success_planned_high']
    assert (holed[same] == whole[same]).all() and holed.success_planned == won.sum() / (60*k)

def test_an_invalid_episode_is_never_a_success_nor_a_number():
    f = frame([1, 1, 0], valid=[1, 0, 1]).assign(success=[True, True, False], reward=[1., 99., 0.])
    s = summary(f, 3).iloc[0]
    assert (s.success_scored, s.success_planned, s.reward) == (.5, 1/3, .5)

def test_missing_tasks_count_in_the_planned_rate():
    f = frame([[1, 1], [1, 0]])
    s = summary(f, 8, draws=300).iloc[0]
    assert (s.success_scored, s.success_planned, s.missing, s.attempts) == (.75, .375, 4, 2)
    with pytest.raises(DataError, match='give `attempts`'): summary(f, 9)
    with pytest.raises(DataError, match='give `attempts`'): summary(f, 4, attempts=1)

def test_an_empty_run_is_all_missing():
    s = summary(frame([1]).iloc[:0], 40).iloc[0]
    assert (s.done, s.missing, s.success_planned) == (0, 40, 0) and math.isnan(s.success_scored) and s.note

def test_paired_says_which_tasks_it_left_out():
    a = frame([1, 1, 0, 0, 1], valid=[1, 0, 1, 1, 1]).iloc[:4]
    b = frame([1, 1, 0, 1, 0]).iloc[1:]
    c = paired(a, b, draws=200)
    assert (c.only_a, c.only_b, c.unscored, c.tasks) == (1, 1, 1, 2) and (c.wins, c.losses) == (1, 0)
    with pytest.raises(DataError, match='share no task'): paired(a.iloc[:1], b)

def test_paired_uses_attempts_that_are_valid_in_both():
    a = frame([[1, 1, 1], [0, 0, 1]], valid=[[1, 1, 0], [1, 1, 1]])
    b = frame([[1, 0, 0], [1, 0, 1]], valid=[[1, 0, 1], [1, 1, 1]])
    c = paired(a, b, draws=200)
    assert c.episodes == 4 and (c.wins, c.ties, c.losses) == (1, 1, 0) and c.delta.value == pytest.approx((0 + 1/3) / 2)

def test_strata_lose_no_episode():
    f = frame([[1, 0], [1, 1], [0, 0], [1, 1]], valid=[[1, 1], [1, 0], [1, 1], [0, 0]],
              lang=['zh', 'en', None, 'zh'], n_constraints=[1, 2, 1, 2])
    f['reward'] = f.reward * 10
    one, two = strata(f, 'lang', draws=200), strata(f, ['lang', 'n_constraints'], draws=200)
    assert one.done.sum() == two.done.sum() == 8 and one.errored.sum() == two.errored.sum() == 3 and one.scored.sum() == 5
    assert one.lang.isna().sum() == 1 and len(two) == 4
    zh = one[one.lang == 'zh'].iloc[0]
    assert (zh.done, zh.scored, zh.success_scored, zh.reward, zh.tasks) == (4, 2, .5, 5, 1)
    with pytest.raises(DataError, match='no column brand'): strata(f, 'brand')

@pytest.mark.parametrize('change,says', [
    (lambda f: f.drop(columns='valid'), 'no column valid'),
    (lambda f: pd.concat([f, f.iloc[:1]]), 't0000, attempt 0: appears twice'),
    (lambda f: f.assign(outcome='error'), 'an error is not a result'),
    (lambda f: f.assign(success=.5), 'success is neither'),
    (lambda f: f.assign(success=None), 'success is neither'),
    (lambda f: f.assign(reward=math.inf), 'not a finite number'),
    (lambda f: f.assign(valid=None), 'valid is neither'),
    (lambda f: f.assign(outcome=None), 'has no outcome'),
    (lambda f: f.assign(n_steps=math.nan), 'has no n_steps'),
])
def test_a_frame_that_would_be_miscounted_is_refused(change, says):
    with pytest.raises(DataError, match=says): check_frame(change(frame([1, 0])))

# S-6

def test_holm_by_hand():
    assert holm([.01, .02, .03, .04]) == pytest.approx([.04, .06, .06, .06])
    assert holm([.03, .001, .5, .02]) == pytest.approx([.06, .004, .5, .06])
    assert holm([.6, .9]) == pytest.approx([1, 1]) and holm([.04]) == pytest.approx([.04]) and len(holm([])) == 0

def test_holm_turns_a_lucky_run_into_a_tie():
    a, b = pair(90, 8, 1, 101) # p = .039 alone
    assert verdict(paired(a, b)) == 'better'
    found = compare({'base': a, 'lucky': b, 'same': a, 'other': a})
    assert found.p.iloc[0] < .05 < found.p_holm.iloc[0] == pytest.approx(3 * mcnemar(8, 1)) and set(found.verdict) == {'tied'}
    with pytest.raises(DataError, match='two or more'): compare({'base': a})

# S-7

def test_small_results_carry_a_caveat():
    assert 'n = 29 < 30' in caveat(29) and caveat(30) == ''
    small, large = frame([1, 0]*14 + [1]), frame([1, 0]*15)
    assert 'n = 29' in summary(small, 29).note[0] and summary(large, 30).note[0] == ''
    assert 'n = 29' in compare_table({'a': small, 'b': large}, {'a': 29, 'b': 30}, draws=200)
    assert 'caveat' not in compare_table({'a': large, 'b': large}, {'a': 30, 'b': 30}, draws=200)
    cut = strata(frame([1, 0]*20, lang=['zh']*35 + ['en']*5), 'lang').set_index('lang')
    assert 'n = 5' in cut.note['en'] and cut.note['zh'] == ''

def test_a_small_number_of_valid_tasks_or_clusters_is_small():
    assert 'n = 20' in summary(frame([1]*40, valid=[1, 0]*20), 40).note[0]
    f = frame([1, 0]*20, family=list(range(8))*5)
    assert 'n = 8' in compare({'a': f, 'b': f}, clusters='family', draws=200).note[0]

# the text and the sample size

def test_the_table_prints_every_denominator():
    won, ok = Draws(0, 'won').uniform(40, 2) < .5, Draws(0, 'ok').uniform(40, 2) > .2
    text = compare_table({'sft': frame(won), 'grpo': frame(won, ok)}, {'sft': 80, 'grpo': 84}, draws=200)
    for word in ('planned', 'done', 'scored', 'errored', 'missing', 'success/scored', 'success/planned', 'not common', 'unscored',
                 'pass^k', 'short', 'win/tie/loss', 'p Holm', 'tied', 'against sft'): assert word in text
    line = next(l.split() for l in text.splitlines() if l.split()[0] == 'grpo')
    assert line[1:7] == ['84', '80', str(ok.sum()), str((~ok).sum()), '0', '4']

def test_an_unfinished_run_states_its_attempts():
    runs = {'a': frame([1, 0]), 'b': frame([[1, 1], [0, 1]])}
    assert 'task bootstrap' in compare_table(runs, {'a': 4, 'b': 4}, attempts={'a': 2}, draws=200)
    with pytest.raises(DataError, match='give `attempts`'): compare_table(runs, {'a': 5, 'b': 4}, attempts={'a': 2})

def test_guard_rejections_are_summed_when_they_exist():
    f = frame([1, 0, 1])
    assert 'guard_rejections' not in summary(f, 3) and summary(f.assign(guard_rejections=[0, 2, 5]), 3).guard_rejections[0] == 7

@pytest.mark.parametrize('delta,share', [(.05, .15), (.10, .25), (-.10, .40)])
def test_paired_sample_size_gives_its_power(delta, share):
    n, rng = n_needed(delta, .6, share), np.random.default_rng(4)
    up, down = (share + delta)/2, (share - delta)/2
    cells = rng.multinomial(n, [up, down, 1-share], RUNS)
    assert abs(np.mean([mcnemar(int(w), int(l)) < .05 for w, l, _ in cells]) - .8) < .04
    assert power(n, delta, .6, share) >= .8 > power(n-2, delta, .6, share)

@pytest.mark.parametrize('delta,base', [(.10, .6), (.05, .9)])
def test_unpaired_sample_size_gives_its_power(delta, base):
    n, rng = n_needed(delta, base), np.random.default_rng(5)
    x, y = rng.binomial(n, base, RUNS), rng.binomial(n, base + delta, RUNS)
    assert abs(np.mean([unpaired_p(i, j, n, yates=True) < .05 for i, j in zip(x, y)]) - .8) < .04
    assert power(n, delta, base) >= .8 > power(n-2, delta, base)

@pytest.mark.parametrize('delta,share', [(.03, .10), (.2, .5), (.4, .5)])
def test_paired_sample_size_solves_its_equation(delta, share):
    up, down = (share + delta)/2, (share - delta)/2 # moments of one task's difference: +1, -1 or 0
    mean, square = up - down, up + down
    def excess(n): return n*mean - 1 - math.sqrt(n) * (1.959964*math.sqrt(square) + .841621*math.sqrt(square - mean**2))
    n = n_needed(delta, .4, share)
    assert excess(n) >= 0 > excess(n - 1)

def test_independent_runs_need_about_as_many_paired_as_unpaired():
    independent = .6*.35 + .65*.4
    assert n_needed(.05, .6, independent) == pytest.approx(n_needed(.05, .6), rel=.02)

@pytest.mark.parametrize('delta,base,share', [(0, .5, None), (.5, .6, None), (.1, .5, .05), (.1, .8, .5)])
def test_impossible_designs_are_refused(delta, base, share):
    with pytest.raises(DataError): n_needed(delta, base, share)

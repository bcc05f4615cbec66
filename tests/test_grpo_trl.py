"""Both backends: the same advantages, the same gradient, the same tokens; and TRL's SFT loss is ours."""
import copy, random
from dataclasses import replace
import numpy as np, pytest, torch
from toyshop import toy_model
from shopping_grpo.core import DataError
from shopping_grpo.env import EnvError
from shopping_grpo.grpo import ALGORITHMS, Recipe
from shopping_grpo.grpo_local import Sample, gradient, play, samples
from shopping_grpo.lockstep import Sampling
from shopping_grpo.sft import collate, token_logps
from shopping_grpo.template import render_row
from shopping_grpo.toy import Toy, demonstrations, toy_tasks

pytest.importorskip('trl')
from trl import GRPOTrainer, SFTConfig, SFTTrainer
from shopping_grpo import grpo_trl
from shopping_grpo.grpo_trl import dress, fit, inputs, make

SMALL = dict(groups=4, n=4, max_new=24, max_length=160, muon=0, minibatches=1, steps=2)


@pytest.fixture(scope='module')
def policy(): return toy_model()

@pytest.fixture(scope='module')
def groups(policy): return play(*policy, Toy, toy_tasks() * 2, 8, 5, Sampling(max_new=24, max_length=160))


def stale(some, seed=0, by=.2):
    "The same samples as if an older policy had written them, cut to different lengths."
    r, out = random.Random(seed), []
    for s in some:
        n = r.randint(s.mask.index(1) + 2, len(s.ids))
        out.append(Sample(s.ids[:n], s.mask[:n], [o + r.gauss(0, by) * m for o, m in zip(s.old[:n], s.mask)], s.advantage[:n]))
    return out


@pytest.mark.parametrize('name', ALGORITHMS)
@pytest.mark.parametrize('beta', [0, .1])
def test_both_backends_have_the_same_gradient(policy, groups, tmp_path, name, beta):
    "fp32, fixed rollouts of different lengths, ratios far from 1 so that clips bite."
    recipe, pad = Recipe(name, beta=beta, **SMALL), policy[1].tokenizer.pad_token_id
    some = stale(samples(groups, recipe)[0][:24], by=5e-4 if name == 'gspo' else .3)
    model = copy.deepcopy(policy[0])
    reference, trainer = copy.deepcopy(model), make(model, policy[1], Toy, toy_tasks(), recipe, tmp_path)
    with torch.no_grad():
        for p in model.parameters(): p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * .01)
    model.zero_grad(); gradient(model, some, recipe, pad, reference)
    ours = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    batch = inputs(some, pad)
    batch['ref_per_token_logps'] = grpo_trl.written_logps(reference, batch, recipe)
    trainer.current_gradient_accumulation_steps = 1
    model.zero_grad(); trainer._compute_loss(model.train(), batch).backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    assert ours @ theirs / ours.norm() / theirs.norm() >= .9999 and abs(ours.norm() / theirs.norm() - 1) < 1e-3


@pytest.fixture
def raw(monkeypatch):
    "What TRL computed before it was replaced."
    kept, theirs = [], GRPOTrainer._generate_and_score_completions
    def keep(self, inputs):
        out = theirs(self, inputs)
        kept.append({k: v.clone() for k, v in out.items() if isinstance(v, torch.Tensor)})
        return out
    monkeypatch.setattr(GRPOTrainer, '_generate_and_score_completions', keep)
    return kept


def generated(policy, recipe, path, scale='none', env=Toy):
    trainer = make(copy.deepcopy(policy[0]), policy[1], env, toy_tasks(), recipe, path)
    trainer.scale_rewards = scale
    trainer.model.train()
    return trainer, trainer._generate_and_score_completions([dict(prompt=[dict(role='user', content='')], key=t.key) for t in toy_tasks() for _ in range(recipe.n)])


@pytest.mark.parametrize('name,scale', [('dr_grpo', 'none'), ('grpo', 'group')])
def test_both_backends_have_the_same_advantages(policy, raw, tmp_path, name, scale):
    "TRL's own, from its own rollouts and rewards, against ours, where nothing is filtered."
    trainer, out = generated(policy, Recipe(name, filter='everything', **SMALL), tmp_path, scale)
    theirs, mask = raw[0]['advantages'][:, None].expand(out['advantages'].shape), out['tool_mask'].bool()
    assert mask.any() and torch.allclose(out['advantages'][mask], theirs[mask], atol=1e-5) and out['advantages'][mask].abs().max() > .1


def test_trl_reads_the_tokens_that_our_engine_reads(policy, tmp_path):
    "Requests, what was written, and what the shop says: the ids of TRL's rollouts are those of our template."
    trainer, out = generated(policy, Recipe(**SMALL), tmp_path)
    template, tools = policy[1], tuple(Toy().tools)
    for i, row in enumerate(trainer.rows):
        assert out['prompt_ids'][i][out['prompt_mask'][i].bool()].tolist() == template.begin(row['prompt'], tools)
        ids, wrote = out['completion_ids'][i].tolist(), raw_mask(trainer, out, i)
        said = [k for k in range(1, len(wrote)) if wrote[k - 1] and not wrote[k] and out['completion_mask'][i][k]]
        heard = [s['observation'] for s in row['steps']]
        if row['outcome'] != 'stopped': heard[-1] = grpo_trl.ENDED
        assert len(said) <= len(heard)
        for start, text in zip(said, heard):
            want = template.answer(text)
            assert ids[start:start + len(want)] == want and not any(wrote[start:start + len(want)])


def raw_mask(trainer, out, i): # where the model wrote, also in episodes that were dropped
    trainer_mask, n = out['completion_mask'][i].bool().tolist(), out['completion_ids'].shape[1]
    ids, end, mask, writing = out['completion_ids'][i].tolist(), trainer._tokenizer.eos_token_id, [], True
    answers = trainer._tokenizer.convert_tokens_to_ids(['<|tool|>', '<|assistant|>'])
    for t, ok in zip(ids, trainer_mask):
        if t == answers[0]: writing = False
        mask.append(writing and ok)
        if t == answers[1]: writing = True
    return mask


class Broken(Toy):
    calls = 0
    def _begin(self, task, seed):
        Broken.calls += 1
        if Broken.calls % 3 == 0: raise EnvError('the shop is down')
        return super()._begin(task, seed)


def test_broken_episodes_are_masked_in_trl_too(policy, tmp_path):
    trainer, out = generated(policy, Recipe(**SMALL | dict(filter='everything')), tmp_path, env=Broken)
    down = [i for i, r in enumerate(trainer.rows) if not r['reward']['valid']]
    assert down and not out['tool_mask'][down].any() and torch.isfinite(out['advantages']).all() and trainer.seen['invalid'] == len(down) / 16
    assert out['num_items_in_batch'] == out['tool_mask'].sum() and trainer.seen['trained'] == 16 - len(down)


def test_a_failed_group_is_dropped_whole(policy, tmp_path):
    trainer, out = generated(policy, Recipe(**SMALL), tmp_path)
    for g in range(4):
        won = [r['success'] for r in trainer.rows[4 * g:4 * g + 4]]
        assert bool(out['tool_mask'][4 * g:4 * g + 4].any()) == (0 < sum(won) < 4)
        if 0 < sum(won) < 4: assert all(out['tool_mask'][4 * g + i].any() for i in range(4))


def place():
    p = dress(Toy, toy_tasks(), Recipe())()
    p.reset(toy_tasks()[0].key)
    return p

@pytest.mark.parametrize('messages,cut,outcome', [([dict(role='assistant', content='no')], False, 'stopped'), ([dict(role='assistant', content='bla')], True, 'max_tokens'),
    ([dict(role='assistant', content='', tool_calls=[1])], False, 'max_tokens'), ([], False, 'stopped')])
def test_an_episode_that_trl_ends_has_its_outcome(messages, cut, outcome):
    "A model that talks has failed, and a cut one was cut; both are valid negatives."
    row = place()._finish(messages, cut)
    assert row['outcome'] == outcome and row['reward']['valid'] and not row['success']


def test_wrong_arguments_are_refused_by_the_environment_not_by_python():
    p = place()
    assert 'does not take' in p.look(shelf='mugs', colour='red') and 'needs shelf' in p.look() and p._finish([], False)['guard_rejections'] == 2
    names = {n for n in dir(p) if not n.startswith('_')}
    assert names == {'look', 'buy', 'reset', 'get_reward'}, 'whatever is public becomes a tool'


def test_trl_trains_and_goes_on_from_its_checkpoint(policy, tmp_path):
    recipe, log = Recipe('gigpo', **SMALL | dict(steps=3, lr=1e-3)), []
    model = copy.deepcopy(policy[0])
    run = fit(model, policy[1], Toy, toy_tasks(), [], replace(recipe, steps=2), tmp_path, log=lambda s, **m: log.append(s), save_every=1)
    assert run.step == 2 and log == [1, 2] and not all(torch.equal(a, b) for a, b in zip(model.parameters(), policy[0].parameters()))
    run = fit(copy.deepcopy(policy[0]), policy[1], Toy, toy_tasks(), [], recipe, tmp_path, log=lambda s, **m: log.append(s), save_every=1)
    assert log == [1, 2, 3]


def test_fewer_tasks_than_groups_still_train(policy, tmp_path):
    "TRL's sampler would give no batch at all."
    run = fit(copy.deepcopy(policy[0]), policy[1], Toy, toy_tasks()[:3], [], Recipe(**SMALL | dict(groups=4, steps=1)), tmp_path)
    assert run.step == 1 and run.history[0]['episodes'] == 16


def test_an_episode_ends_where_the_shop_ends_it(policy, tmp_path):
    "After a purchase TRL writes an end mark and nothing else, and that is not trained on."
    trainer, out = generated(policy, Recipe(**SMALL | dict(filter='everything')), tmp_path)
    ended = policy[1].answer(grpo_trl.ENDED) + [policy[1].end]
    bought = [i for i, r in enumerate(trainer.rows) if r['outcome'] == 'purchased']
    assert bought
    for i in bought:
        ids, n = out['completion_ids'][i].tolist(), int(out['completion_mask'][i].sum())
        assert ids[n - len(ended):n] == ended and not out['tool_mask'][i][n - len(ended):].any()
        assert out['tool_mask'][i].sum() > 0


def test_final_tasks_are_refused(policy, tmp_path):
    final = [replace(toy_tasks()[0], split='test')]
    for tasks, validation in ((final, []), (toy_tasks(), final)):
        with pytest.raises(DataError, match='final set'): fit(*policy, Toy, tasks, validation, Recipe(**SMALL), tmp_path)


def test_trl_sft_has_our_loss(policy, tmp_path):
    "On a fixed batch of different lengths, to 1e-5; only what the assistant wrote counts."
    model, template = copy.deepcopy(policy[0]).eval(), policy[1]
    rows = [render_row(template, r, Toy().tools) for r in demonstrations(3, 6)]
    rows = [(ids[:n], mask[:n]) for (ids, mask), n in zip(rows, (99, 99, 99, 40, 45, 99))]
    ids, seen, mask = collate(rows, template.tokenizer.pad_token_id)
    with torch.no_grad(): ours = -token_logps(model, ids, seen, mask).mean()
    from datasets import Dataset
    data = Dataset.from_list([dict(input_ids=i, completion_mask=m) for i, m in rows])
    config = SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, gradient_checkpointing=False, per_device_train_batch_size=len(rows), completion_only_loss=True, report_to=[], max_length=None)
    trainer = SFTTrainer(model, config, train_dataset=data, processing_class=template.tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad(): theirs = trainer.compute_loss(model, batch)
    assert (batch['labels'] != -100).sum() == mask[:, 1:].sum() and abs(ours - theirs) < 1e-5, (ours, theirs)

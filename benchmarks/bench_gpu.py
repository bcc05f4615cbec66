"""Three SFT and three GRPO steps of profile gpu-1, through stages 35 and 45, on a Qwen3 with random weights and the size of the real one: tokens a second and peak memory.

    python benchmarks/bench_gpu.py            # the shape of Qwen3-0.6B; one GPU with 40 GB, 30 GB of disk for its checkpoints
    python benchmarks/bench_gpu.py --small    # two layers and short batches: proves on a CPU that the script works

Random weights write no calls, so an episode is one turn of `max_new` tokens, and the filter lets every group through; what a step costs in memory and arithmetic does not depend on what is written.
"""
import argparse, os, tempfile
from pathlib import Path
import torch
from machine import machine, table
from transformers import Qwen3Config, Qwen3ForCausalLM
from shopping_grpo import core
from shopping_grpo.collect import load_sft
from shopping_grpo.env import load_env
from shopping_grpo.model import LanguageModel, shop_texts, train_tokenizer
from shopping_grpo.stage import find_stage, parse_parameters, profile_steps, run_stage
from shopping_grpo.store import Run

SHAPE = dict(vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960, tie_word_embeddings=True)
SMALL = dict(vocab_size=4000, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
LESS = {'35': dict(budget=4096), '45': dict(groups=2, n=2, max_new=8, piece=4096)}

ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
ask.add_argument('--small', action='store_true'); ask.add_argument('--steps', type=int, default=3); ask.add_argument('--rows', type=int, default=256)
given = ask.parse_args()


def random_model(path):
    "A folder with random weights and a tokenizer of the shop."
    rows, world = load_sft(core.folder('runs')/'collect'/'bench'), load_env('shopsim', size='tiny', view='brief', page_size=4)
    tokenizer = train_tokenizer(shop_texts(world.catalog, [r['messages'][0]['content'] for r in rows]), list(world.toolbox().values()))
    torch.manual_seed(0)
    c = Qwen3Config(**SHAPE | (SMALL if given.small else {}), pad_token_id=tokenizer.pad_token_id, bos_token_id=None, eos_token_id=tokenizer.eos_token_id)
    lm = LanguageModel('random', Qwen3ForCausalLM(c), tokenizer)
    lm.save(path)
    return lm.size


def training_step(stage, **change):
    "The first line of profile gpu-1 for a stage, with some parameters changed; returns the run."
    line = next(line for s, line, _ in profile_steps('gpu-1') if s == stage)
    known = parse_parameters(find_stage(stage), line)
    run_stage(stage, known | (LESS[stage] if given.small else {}) | dict(validation_tasks=0, name='bench') | change, quiet=True)
    return Run.load(core.folder('runs')/('sft' if stage == '35' else 'grpo')/'bench').metrics().set_index('step')


def main():
    ours, device = core.root(), torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'
    with tempfile.TemporaryDirectory() as d:
        for name in ('nbs', 'settings.ini'): (Path(d)/name).symlink_to(ours/name)
        os.environ['SHOPPING_GRPO_ROOT'] = d
        run_stage('05', dict(tasks=40, train_tasks=2 * given.rows), quiet=True)
        run_stage('25', dict(target=given.rows, attempts=1, validation=0.0, name='bench'), quiet=True)
        size = random_model(Path(d)/'random')
        print(machine(), f'\n{device}; Qwen3 with {size / 1e6:,.1f} M random parameters, bf16, {given.steps} steps each\n')
        sft = training_step('35', data='bench', model=f'{d}/random', steps=given.steps, log_every=1)
        grpo = training_step('45', size='tiny', model=f'{d}/runs/sft/bench/best', steps=given.steps, filter='everything')
    after = grpo.loc[2:] # the first step warms up
    seconds = after.play_s.sum() + after.update_s.sum()
    rate = lambda total, s, what: f'{total / s:,.0f} {what}'
    table([('SFT, read and trained', rate(sft.tokens.iloc[-1] - sft.tokens.iloc[0], sft.seconds.iloc[-1] - sft.seconds.iloc[0], 'tokens/s'), '', None),
        ('SFT, peak memory', f'{sft.memory_gib.max():.1f} GiB', '', None),
        ('GRPO, written by the model', rate(after.tokens.sum(), after.play_s.sum(), 'tokens/s'), '', None),
        ('GRPO, episodes with their update', f'{after.episodes.sum() / seconds:.2f} episodes/s', '', None),
        ('GRPO, share of the time that is playing', f'{after.play_s.sum() / seconds:.0%}', '', None),
        ('GRPO, peak memory', f'{grpo.memory_gib.max():.1f} GiB', '', None)])
    assert len(sft) == len(grpo) == given.steps and grpo.trained.min() > 0, 'every step must have trained'


if __name__ == '__main__': main()

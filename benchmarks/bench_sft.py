"""Tokens a CPU-second of supervised training: our loop and TRL's `SFTTrainer`, same model, rows and batches, one thread, in one run; and the loss of both on one batch.

    python benchmarks/bench_sft.py                                   # the toy shop
    python benchmarks/bench_sft.py --data NAME --model tiny          # a collection of stage 25
"""
import argparse, copy, json, logging, tempfile, time
import torch
from machine import machine, table
from datasets import Dataset, disable_progress_bars
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer
from shopping_grpo import core
from shopping_grpo.collect import load_sft
from shopping_grpo.env import load_env
from shopping_grpo.model import load_model, shop_texts
from shopping_grpo.sft import Training, collate, optimizers, token_logps, update
from shopping_grpo.sft_local import make_lessons
from shopping_grpo.template import Template, render_row
from shopping_grpo.toy import Toy, demonstrations, toy_policy

ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
ask.add_argument('--data', default='toy'); ask.add_argument('--model', default='toy')
ask.add_argument('--rows', type=int, default=160); ask.add_argument('--batch', type=int, default=8); ask.add_argument('--max-length', type=int, default=2048)
given = ask.parse_args()
torch.set_num_threads(1)
disable_progress_bars()
for name in ('trl', 'transformers.trainer', 'accelerate'): logging.getLogger(name).setLevel(logging.ERROR)


def prepare():
    "A model and rendered rows, in batches of about one length."
    if given.data == 'toy':
        lm = toy_policy(epochs=1)
        rows = [render_row(Template(lm.tokenizer), r, Toy().tools) for r in demonstrations(3, given.rows)]
    else:
        where = core.folder('runs')/'collect'/given.data
        kept, made = load_sft(where)[:given.rows], json.loads((where/'dataset.json').read_text())['config']
        world = load_env(made['env'], size=made['size'], **made['shop'])
        tools = list(world.toolbox().values())
        lm = load_model(given.model, list(shop_texts(world.catalog, [r['messages'][0]['content'] for r in kept])), tools)
        rows = make_lessons(Template(lm.tokenizer), kept, tools, [0], given.max_length)[0][0]
    rows = sorted(rows, key=lambda r: len(r[0]))
    return lm, [rows[i:i + given.batch] for i in range(0, len(rows) - given.batch + 1, given.batch)]


def local(lm, batches, muon=0.0):
    "CPU-seconds of every step of our loop."
    model, t, marks = copy.deepcopy(lm.model), Training(lr=1e-4, muon=muon, decay=0.0), []
    opts = optimizers(model, t)
    for b in batches:
        update(model, opts, b, lm.tokenizer.pad_token_id, t)
        marks.append(time.process_time())
    return marks


class Clock(TrainerCallback):
    "Notes the CPU-seconds at the end of every step."
    def __init__(self): self.marks = []
    def on_step_end(self, *_, **__): self.marks.append(time.process_time())


def stock(lm, rows, path):
    "TRL's trainer as it comes, without what costs time on a CPU for nothing (checkpointed activations, bf16), in the order of the rows."
    data = Dataset.from_list([dict(input_ids=i, completion_mask=m) for i, m in rows])
    config = SFTConfig(output_dir=path, use_cpu=True, bf16=False, gradient_checkpointing=False, per_device_train_batch_size=given.batch, completion_only_loss=True, max_length=None, num_train_epochs=1, learning_rate=1e-4, lr_scheduler_type='constant',
        train_sampling_strategy='sequential', logging_strategy='no', save_strategy='no', report_to=[], disable_tqdm=True)
    trainer = SFTTrainer(copy.deepcopy(lm.model), config, train_dataset=data, processing_class=lm.tokenizer)
    for callback in (PrinterCallback, ProgressCallback): trainer.remove_callback(callback)
    return trainer


def loss_gap(lm, trainer) -> float:
    "Between both losses on the first batch of TRL's own loader."
    batch = next(iter(trainer.get_train_dataloader()))
    rows = [(ids[seen.bool()].tolist(), (labels[seen.bool()] != -100).int().tolist()) for ids, seen, labels in zip(batch['input_ids'], batch['attention_mask'], batch['labels'])]
    with torch.no_grad(): return abs(float(-token_logps(lm.model.eval(), *collate(rows, lm.tokenizer.pad_token_id)).mean() - trainer.compute_loss(trainer.model.eval(), batch)))


def main():
    lm, batches = prepare()
    tokens = sum(len(i) for b in batches[1:] for i, _ in b) # the first step warms up
    print(machine(), f'\n{given.data}, {lm.size:,} parameters, {len(batches)} batches of {given.batch} rows, {tokens / given.batch / (len(batches) - 1):.0f} tokens a row\n')
    marks = {'local': local(lm, batches), 'local with Muon': local(lm, batches, 5.0)}
    with tempfile.TemporaryDirectory() as d:
        trainer, clock = stock(lm, [r for b in batches for r in b], d), Clock()
        gap = loss_gap(lm, trainer)
        trainer.add_callback(clock)
        trainer.train()
    assert len(clock.marks) == len(batches), 'both must take the same steps'
    rates = {k: tokens / (m[-1] - m[0]) for k, m in (marks | {"TRL's SFTTrainer": clock.marks}).items()}
    ours = rates['local']
    table([(k, f'{rate:,.0f} tokens a CPU-second', '' if k == 'local' else f'local is {ours / rate:.2f} x as fast', None) for k, rate in rates.items()] + [('losses on one batch differ by', f'{gap:.1e}', '<= 1e-5', gap <= 1e-5)])


if __name__ == '__main__': main()

"""What evaluation costs beside environment and policy, and what a report of 2,000 episodes weighs. Prints a table with the bar beside each number.

    python benchmarks/bench_eval.py      # needs `shopping-grpo data build`
"""
import tempfile, time
from pathlib import Path
from machine import machine, table
from shopping_grpo.core import folder
from shopping_grpo.env import load_env
from shopping_grpo.eval import summary
from shopping_grpo.report import build_report
from shopping_grpo.sitting import player, sitting
from shopping_grpo.store import Run
from shopping_grpo.task import load_tasks

EPISODES = 2000


def evaluate(env, name, tasks, attempts, root):
    "A run of one policy as stage 55 plays it; returns it with the seconds of everything, and of environment and policy alone."
    start, inside = time.perf_counter(), []
    def count(row): inside.append(row['timing']['model'] + row['timing']['env']); return {}
    with Run.open('eval', name, config=dict(policy=name), planned=[(t.key, a) for a in range(attempts) for t in tasks], root=root) as run:
        sitting(run, player(name, lambda: env, env.catalog), tasks, more=count)
    frame = run.scores()
    summary(frame, len(frame))
    return run, time.perf_counter() - start, sum(inside)


def main():
    print(machine(), '\n')
    env = load_env('shopsim')
    tasks = load_tasks(folder('data')/'built'/'tiny'/'tasks'/'shopsim-train.jsonl')
    with tempfile.TemporaryDirectory() as tmp:
        run, seconds, inside = evaluate(env, 'rule', tasks, -(-EPISODES // len(tasks)), tmp)
        n, steps = len(run.scores()), int(run.scores().n_steps.sum())
        others = [evaluate(env, p, tasks[:20], 1, tmp)[0] for p in ('oracle', 'do-nothing')]
        given = [(r.manifest['config']['policy'], list(r.episodes()), r.manifest | dict(planned=r.counts()['planned'])) for r in (run, *others)]
        start = time.perf_counter()
        page = build_report(given, Path(tmp)/'report.html')
        built, size = time.perf_counter() - start, page.stat().st_size / 1e6
        table([(f'{n} episodes of the rule policy', f'{seconds:.1f} s, {steps / seconds:,.0f} steps/s', '', None),
               ('overhead beyond environment and policy', f'{seconds / inside - 1:.1%}', '<= 20 %', seconds / inside <= 1.2),
               (f'report of {n + 40} episodes', f'{built:.1f} s', '<= 10 s', built <= 10), ('its size', f'{size:.1f} MB', '<= 15 MB', size <= 15)])


if __name__ == '__main__': main()

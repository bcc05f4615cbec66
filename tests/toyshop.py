"""A tiny policy for the toy shop: it knows the form of a call and heeds the request once in seven times."""
import torch
from shopping_grpo.model import Shape, new_model, train_tokenizer
from shopping_grpo.rollout import rollout
from shopping_grpo.sft import sft
from shopping_grpo.template import Template
from shopping_grpo.toy import Toy, toy_tasks, wander


class Wander:
    name, privileged = 'wander', True
    def begin(self, briefing, seed, task): self.plan = wander(task, seed)
    def act(self, observation): return self.plan.pop(0)


def demonstrations(seed, n=240): return [rollout(Wander(), Toy(), toy_tasks()[i % 4], seed=1000 * seed + i) for i in range(n)]


def toy_model(seed=0, epochs=6):
    "A model and its template; without epochs the weights are random."
    torch.set_num_threads(1)
    rows, tools = demonstrations(seed), Toy().tools
    tok = train_tokenizer([r['prompt'] + ''.join(s['observation'] for s in r['steps']) for r in rows] + [f' {w}' for w in 'mugs hats a1 b2 c3 d4'.split()], tools, size=360)
    template = Template(tok)
    model = new_model(Shape(hidden=64, layers=2, heads=2, inner=192, vocab=len(tok), length=256), seed, tok.pad_token_id, tok.eos_token_id)
    for _ in sft(model, [template.render(r, tools) for r in rows], tok.pad_token_id, epochs=epochs, budget=256, seed=seed): pass
    return model, template

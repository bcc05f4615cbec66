"""The toy policy for tests."""
import torch
from shopping_grpo.template import Template
from shopping_grpo.toy import toy_policy


def toy_model(seed=0):
    "A model and its template."
    torch.set_num_threads(1)
    lm = toy_policy(seed)
    return lm.model, Template(lm.tokenizer)

"""An extension of vLLM's workers, so that new weights reach a server that runs on a CPU.

vLLM's linear layers on a CPU pack their weight once and forget it, so new weights could not be loaded (or, through `reload_weights`, would be dropped in silence). Here they keep it and multiply as torch does.
"""
import torch
from vllm.model_executor.layers import utils
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension


def keep_weight(layer, remove_weight): layer.cpu_linear = torch.nn.functional.linear


class PlainLinear(vLLMColocateWorkerExtension):
    """verl's own extension with linear layers that can be loaded again."""
    def __new__(cls, **how):
        utils.dispatch_cpu_unquantized_gemm = keep_weight
        return super().__new__(cls, **how)

"""Runs plans behind a ``torch.nn.Module``, with the user's training loop, loss and optimizer."""

from hpcpar.torch.model import ParallelModule
from hpcpar.torch.optimizer_state import load_optimizer_state_dict, optimizer_state_dict
from hpcpar.torch.parallelize import parallelize
from hpcpar.torch.reductions import clip_grad_norm_, gather, mean, sum
from hpcpar.torch.sampler import BatchSampler

__all__ = ["BatchSampler", "ParallelModule", "clip_grad_norm_", "gather",
           "load_optimizer_state_dict", "mean", "optimizer_state_dict", "parallelize", "sum"]

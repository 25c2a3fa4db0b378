"""Imports for modules with your own layers, strategies, algorithms, optimizers or batch systems.

docs/how-to/extend.md shows how.
"""

from __future__ import annotations

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import Activation, Layer, Loss, PassWork, Shape, Windowed
from hpcpar.network.read.importer import Importer
from hpcpar.network.read.onnx_ops import reads_onnx
from hpcpar.network.read.operations import Node
from hpcpar.network.read.torch_call import Call
from hpcpar.network.read.torch_ops import reads_torch
from hpcpar.network.receptive_field import Full, Relation, Same, Window
from hpcpar.plan.frameworks import FRAMEWORKS, Framework
from hpcpar.plan.optimizers import Optimizer, Update
from hpcpar.plan.strategy import Configs, Strategy, StrategyRequest, assign, grids, mixed, several
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.runtime.ops.windows import reaches
from hpcpar.schedule.algorithms.base import Algorithm, Collective, Round, message
from hpcpar.schedule.algorithms.registry import collective_algorithm
from hpcpar.schedule.steps import Kind
from hpcpar.sweep.schedulers import Scheduler, scheduler
from hpcpar.sweep.schedulers.base import Question

__all__ = ["FRAMEWORKS", "Activation", "Algorithm", "Array", "Call", "Collective", "Configs",
           "Context", "Framework", "Full", "Importer", "Kind", "Layer", "Loss", "Node", "Operator",
           "Optimizer", "PassWork", "Question", "Relation", "Round", "Same", "Scheduler", "Shape",
           "Strategy", "StrategyRequest", "Update", "Window", "Windowed", "assign",
           "collective_algorithm", "grids", "message", "mixed", "operator", "reaches",
           "reads_onnx", "reads_torch", "scheduler", "several"]

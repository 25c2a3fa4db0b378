"""Calls of an exported module as a program (`hpcpar.network.aten`), and what it costs."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from hpcpar.errors import InputError, one_line
from hpcpar.network.aten import ATTENTION, DROPOUT, NOISES, AtenProgram
from hpcpar.network.layers.base import Shape
from hpcpar.network.read.torch_call import Tensor
from hpcpar.network.read.traced_calls import Called, ProgramText, reached, read_by

_aten = torch.ops.aten
#: Attention on CPUs, which PyTorch's counter does not know.
_COUNTED = {_aten._scaled_dot_product_flash_attention_for_cpu:
            lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}
#: Drop path's operators.
BERNOULLI = "aten.bernoulli.float", "aten.bernoulli.p"
#: Dropout of whole channels, as of Dropout2d.
FEATURES = "aten.feature_dropout.default"
#: Noise of a given size, as noise of a tensor's size.
SIZED = {f"aten.{kind}.default": f"aten.{kind}_like.default" for kind in ("rand", "randn")}
DIVISIONS = "aten.div.Tensor", "aten.div.Scalar"
#: Most bytes of a part's buffers, which are stored with the network.
MOST_BYTES = 1 << 24
#: Largest relative difference between a sample alone and in a batch, in the module's type.
ROUNDING = 1e-4


def written(calls: Mapping[str, Called], stored: Mapping[str, torch.Tensor], samples: int,
            inputs: Mapping[str, Shape], output: str, states: Mapping[str, str]) -> ProgramText:
    """The program that computes a tensor from others.

    Parameters
    ----------
    calls : dict
        The call that makes each tensor, in order.
    stored : dict
        The module's parameters and buffers.
    samples : int
        Samples of the trace, a prime number: an argument that it divides counts samples.
    inputs : dict
        Shape of a sample of each input.
    states : dict
        Buffers that the calls change, and the results with their new values.

    Raises
    ------
    InputError
        A call has no place in a program.
    """
    names = {name: f"%x{i}" for i, name in enumerate(inputs)}
    weights: list[str] = []
    constants: list[tuple[str, Shape, str]] = []
    bytes_: int = 0
    drops: list[int] = []
    #: Random 0s and 1s, one for each sample, with the share of 1s.
    kept_of: dict[str, float] = {}
    lines: list[tuple[str, Mapping[str, object]]] = []
    complex_ = {name for name, tensor in stored.items() if tensor.is_complex()}
    # complex weights first: each is a view of pairs of reals, which must begin at an even place
    for name in sorted(dict.fromkeys((*states, *reached(calls, inputs, output))),
                       key=lambda name: name not in complex_):
        if name in stored:
            tensor = stored[name].detach().cpu()
            if name in states or (isinstance(stored[name], torch.nn.Parameter) and (
                    tensor.is_floating_point() or name in complex_)):
                names[name] = f"%w{len(weights)}"
                weights.append(name)
                if name in complex_:
                    lines.append(("aten.view_as_complex.default", {"self": names[name]}))
                    names[name] = f"%t{len(lines) - 1}"
                continue
            names[name] = f"%c{len(constants)}"
            array = tensor.numpy()
            bytes_ += array.nbytes
            constants.append((array.dtype.str, tuple(array.shape),
                              base64.b64encode(array.tobytes()).decode()))
            continue
        call = calls[name]
        values = dict(call.values)
        if _is_path(call, samples):
            kept_of[name] = float(cast(float, values.get("p", 0.5)))
            continue
        if path := next(iter(kept_of.keys() & read_by(call)), ""):
            lines += _dropped_path(call, kept_of.pop(path), len(lines))
            drops.append(1)
            names[name] = f"%t{len(lines) - 1}"
            continue
        if call.operator == FEATURES and values["train"] and values["p"]:
            given = names[cast(str, values["input"])]
            shape = (*call.shape[:2], *(1,) * (len(call.shape) - 2))
            values = {"input": None, "p": values["p"]}
            drops += _random(calls, Called(DROPOUT, {}, shape), values, samples)
            lines += _dropped_ones(_argument(shape, names, samples, name), len(lines), values)
            lines.append(("aten.mul.Tensor", {"self": given, "other": f"%t{len(lines) - 1}"}))
            names[name] = f"%t{len(lines) - 1}"
            continue
        if values.get("running_mean") and values.get("training", values.get("use_input_stats")):
            raise InputError("it keeps running statistics, which a layer of its own would not; use "
                             "a normalization without them there, such as GroupNorm")
        if call.operator in SIZED:
            zeros = Tensor(f"{name}.zeros")
            names[zeros] = f"%t{len(lines)}"
            lines.append(("aten.full.default", {
                "size": _argument(values["size"], names, samples, name), "fill_value": 0.0,
                "dtype": _argument(values.get("dtype") or torch.float32, names, samples, name),
                "device": {"device": ""}}))
            call, values = Called(SIZED[call.operator], {}, call.shape), {"self": zeros}
        if _is_random(call.operator):
            drops += _random(calls, call, values, samples)
        names[name] = f"%t{len(lines)}"
        lines.append((call.operator, {key: _argument(value, names, samples, name)
                                      for key, value in values.items()}))
    if bytes_ > MOST_BYTES:
        raise InputError(f"its buffers have {bytes_ / 2**20:.0f} MiB; at most "
                         f"{MOST_BYTES >> 20} MiB are stored with a network: make them parameters "
                         "with requires_grad=False")
    data = {"inputs": [*inputs.values()], "calls": lines, "constants": constants,
            "drops": [len(drops), max(drops, default=0)],
            "state": [(int(names[name][2:]), int(names[new][2:])) for name, new in states.items()]}
    return ProgramText(json.dumps(data), tuple(weights), [
        torch.view_as_real(stored[name]) if name in complex_ else stored[name]
        for name in weights], tuple(name for name in names if names[name].startswith("%c")),
        tuple(states))


def _is_random(operator: str) -> bool:
    if operator == "getitem":
        return False
    packet = getattr(_aten, operator.split(".")[1])  # bernoulli_.float has no bernoulli.float
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags
               for overload in packet.overloads())


def draws(call: Called) -> bool:
    """Whether a call draws random numbers, as dropout does at a rate above 0."""
    rate = _rate(call.values)
    return _is_random(call.operator) and (bool(rate) if call.operator == ATTENTION else rate != 0.0)


def _rate(values: Mapping[str, object]) -> object:
    """The rate of a dropout among a call's arguments; None without any."""
    return values.get("dropout_p", values.get("dropout", values.get("p")))


def _is_path(call: Called, samples: int) -> bool:
    """Whether a call draws 0 or 1 for each sample, as drop path does first."""
    return call.operator in BERNOULLI and call.shape == (samples, *(1,) * (len(call.shape) - 1))


def _dropped_path(call: Called, kept: float, number: int) -> list[tuple[str, dict[str, object]]]:
    """Drop path's division of random 0s and 1s by the share of 1s, as a dropout of ones; `number`
    is the place in the program.

    Raises
    ------
    InputError
        The call is another one, whose result also is random in evaluation.
    """
    by = call.values.get("other")
    if call.operator not in DIVISIONS or not isinstance(by, float) or not math.isclose(by, kept):
        raise InputError("it draws a random number for each sample and does not divide it by the "
                         "share that is kept, as drop path does")
    return _dropped_ones([{"samples": 1}, *call.shape[1:]], number, {"p": 1 - kept, "axis": 0})


def _dropped_ones(size: object, number: int, values: Mapping[str, object]
                  ) -> list[tuple[str, dict[str, object]]]:
    """A dropout of ones; `number` is the place in the program."""
    return [("aten.full.default", {"size": size, "fill_value": 1.0, "dtype": {
        "constant": "float32"}, "device": {"device": ""}}),
            (DROPOUT, {**values, "input": f"%t{number}", "train": True})]


def _random(calls: Mapping[str, Called], call: Called, values: dict[str, object],
            samples: int) -> list[int]:
    """Adds the axis of samples to the arguments of a dropout or a noise; its values of a sample."""
    rate = _rate(values)
    if call.operator == ATTENTION and not rate:
        return []
    if call.operator not in (DROPOUT, ATTENTION, *NOISES):
        if rate != 0.0:
            raise InputError(f"{call.operator} draws random numbers; only dropout, attention's "
                             "dropout, rand, randn, rand_like and randn_like do so for each sample")
        return []
    shape = call.shape
    if call.operator == ATTENTION:
        key = read_by(call)[1]
        shape = (*shape[:-1], calls[key].shape[-2])
    axis = next((i for i, extent in enumerate(shape) if extent % samples == 0 and extent), None)
    if axis is None:
        raise InputError(f"{call.operator} has no axis of samples")
    values["axis"] = axis
    return [math.prod(shape) // samples]


def _argument(value: Any, names: Mapping[str, str], samples: int, of: str) -> object:
    """An argument as JSON data."""
    if isinstance(value, Tensor):
        return names[value]
    if isinstance(value, list | tuple):
        return [_argument(item, names, samples, of) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return {"samples": value // samples} if value and value % samples == 0 else value
    if isinstance(value, str) and not value.startswith("%"):
        return value
    if isinstance(value, torch.device):
        return {"device": ""}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"constant": str(value).removeprefix("torch.")}
    raise InputError(f"'{of}' has an argument that cannot be stored ({one_line(value)})")


# -- measures --------------------------------------------------------------------------------------
def layer_options(program: ProgramText, output: Shape) -> dict[str, Any]:
    """The fields of a `Whole` layer but its output.

    Raises
    ------
    InputError
        PyTorch cannot run the part on other numbers of samples than the trace.
    """
    try:
        shape, kept_bytes, flops = _costs(program)
    except Exception as err:  # whatever PyTorch raises
        raise InputError(f"PyTorch cannot run it on other numbers of samples ({one_line(err)})"
                         ) from err
    if shape != (1, *output):
        raise InputError(f"a sample alone has an output {shape}, not {(1, *output)}; take the "
                         "number of samples from its input, as in x.shape[0]")
    return {"program": program.text, "sample_flops": float(flops),
            "kept_items": -(-kept_bytes // _dtype(program).itemsize),
            "tensors": tuple((tuple(t.shape), float(t.detach().double().mean()),
                              float(t.detach().double().std(correction=0)))
                             for t in program.tensors)}


def _dtype(program: ProgramText) -> torch.dtype:
    """The type of the weights, else float32."""
    return next((t.dtype for t in program.tensors), torch.float32)


def treats_apart(program: ProgramText) -> bool:
    """Whether two random samples together give the same outputs as each sample alone.

    Raises
    ------
    InputError
        PyTorch cannot run the part.
    """
    ready, weights = AtenProgram(program.text), [t.detach().cpu() for t in program.tensors]
    draw = torch.Generator().manual_seed(0)
    pairs = [torch.randn(2, *shape, generator=draw, dtype=_dtype(program))
             for shape in ready.inputs]
    try:
        with torch.no_grad():
            both = ready(pairs, weights, None, _halves)
            apart = torch.cat([ready([pair[i:i + 1] for pair in pairs], weights, None, _halves)
                               for i in range(2)])
    except Exception as err:  # whatever PyTorch raises
        raise InputError(f"PyTorch cannot run it ({one_line(err)})") from err
    largest = apart.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return both.shape == apart.shape and torch.allclose(
        both, apart, 0.0, ROUNDING * float(largest), equal_nan=True)


def _halves(noise: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.full_like(noise, 0.5)


def _costs(program: ProgramText) -> tuple[tuple[int, ...], int, int]:
    """Shape of a sample's output, bytes that autograd keeps for it besides inputs and weights, and
    flops; without computing, where no size depends on values.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return _counted(program, torch.empty)
    except (DynamicOutputShapeException, DataDependentOutputException):
        return _counted(program, torch.randn)


def _counted(program: ProgramText, new: Callable[..., torch.Tensor]
             ) -> tuple[tuple[int, ...], int, int]:
    ready = AtenProgram(program.text)
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    xs, ws = ([new(shape, dtype=kind, requires_grad=True) for shape, kind in given]
              for given in ([((1, *shape), _dtype(program)) for shape in ready.inputs],
                            [(t.shape, t.dtype) for t in program.tensors]))
    with (torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t),
          FlopCounterMode(display=False, custom_mapping=_COUNTED) as counter):
        output = ready(xs, ws)
    for given in (*xs, *ws):
        kept.pop(given.untyped_storage()._cdata, None)
    return (tuple(output.shape), sum(storage.nbytes() for storage in kept.values()),
            counter.get_total_flops())

"""The user's tree of modules over a rank's parts of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcpar.errors import InputError

#: Dictionaries of a module's hooks.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
#: Types of attributes on which a module's computation may depend.
_OPTIONS = (bool, int, float, str, type(None), FunctionType, BuiltinFunctionType)


class Tree:
    """A copy of a tree of modules: the same classes, names and attributes over other tensors.

    Its modules cannot be called by themselves, because their tensors are a rank's parts. A plan
    does not see what changes in them later; see `require_unchanged`.

    Parameters
    ----------
    module : nn.Module
        The tree to copy.
    replaced : mapping
        The new tensor by the id of an old one. The copy shares tensors that are missing here.

    Attributes
    ----------
    root : nn.Module
        The copy of `module`.
    """

    def __init__(self, module: nn.Module, replaced: Mapping[int, Tensor]) -> None:
        self.root = _copied(module, "", replaced, {})
        parts = dict(self.root.named_modules())
        self._options = [(path, vars(part), _options(part)) for path, part in parts.items()]
        self._members: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
            (path, now, dict(now)) for path, part in parts.items()
            for now in (part._modules, part._parameters, part._buffers)]
        self._tensors = [(name, tensor, tensor.data_ptr()) for name, tensor in (
            *self.root.named_parameters(), *self.root.named_buffers())]
        self._hooks = [getattr(part, hooks) for part in parts.values() for hooks in _HOOKS]
        self._named_hooks = [(path, hooks) for path in parts for hooks in _HOOKS]

    def require_unchanged(self) -> None:
        """Check that nothing has changed that the plan would have to see.

        Raises
        ------
        InputError
            An option, a submodule or a tensor is another one, or there is a hook.
        """
        self.require_own_tensors()
        for path, now, before in self._options:
            for name in _different(now, before):
                if type(now.get(name)) is not type(before[name]) or now[name] != before[name]:
                    raise _changed(path, name)
        if any(self._hooks):
            path, kind = next(named for named, hooks in
                              zip(self._named_hooks, self._hooks, strict=True) if hooks)
            raise _hook(path, kind)
        for name, tensor, _ in self._tensors:
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                raise _hook(name, "of its gradient")

    def require_own_tensors(self) -> None:
        """Check that no submodule or tensor has been replaced or moved."""
        for path, now, before in self._members:
            for name in (*_different(now, before), *(now.keys() - before.keys())):
                raise _changed(path, name)
        for name, tensor, address in self._tensors:
            if tensor.data_ptr() != address:
                raise InputError(f"'{name}' is not in the executor's memory any more: change it in "
                                 "place, as with p.data.copy_(...), instead of p.data = ...")


def hooked(module: nn.Module) -> Iterator[str]:
    """Names of the modules that have hooks."""
    for path, part in module.named_modules():
        if any(getattr(part, hooks) for hooks in _HOOKS):
            yield path or type(part).__name__


def _copied(module: nn.Module, path: str, replaced: Mapping[int, Tensor],
            memo: dict[int, nn.Module]) -> nn.Module:
    """A module over other tensors, with its submodules; see `Tree`."""
    if id(module) in memo:
        return memo[id(module)]
    made = cast(nn.Module, object.__new__(type(module)))
    nn.Module.__init__(made)
    base = set(vars(made))  # hooks, too, which stay empty
    vars(made).update({name: value for name, value in vars(module).items() if name not in base})
    made.training, memo[id(module)] = module.training, made
    for ours, theirs in ((made._parameters, module._parameters), (made._buffers, module._buffers)):
        ours.update({name: replaced.get(id(tensor), tensor)
                     for name, tensor in theirs.items()})
    for name, child in module._modules.items():
        made._modules[name] = None if child is None else _copied(
            child, _joined(path, name), replaced, memo)
    vars(made).update(
        forward=partial(_refuse, path, "called"), load_state_dict=partial(_refuse, path, "loaded"),
        state_dict=partial(_state_dict, path, made), _save_to_state_dict=_nothing,
        _load_from_state_dict=_nothing)
    return made


def _options(part: nn.Module) -> dict[str, Any]:
    """A module's attributes on which its computation may depend. The momentum of running statistics
    may change; see `hpcpar.torch.modes`.
    """
    free = {*vars(nn.Module())} | ({"momentum"} if isinstance(part, _BatchNorm) else set())
    given = {name: value for name, value in vars(part).items() if name not in free}
    return {"forward": given["forward"]} | {
        name: value for name, value in given.items() if all(
            isinstance(item, _OPTIONS) for item in (value if type(value) is tuple else [value]))}


def _changed(path: str, name: str) -> InputError:
    return InputError(f"'{_joined(path, name)}' has changed since hpcpar.torch.parallelize, which "
                      "the plan does not see: change the module before, and tensors in place")


def _different(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Names of values that are not the same objects; fast where all are."""
    if all(map(is_, map(now.get, before), before.values())):
        return []
    return [name for name, value in before.items() if now.get(name) is not value]


def _hook(name: str, kind: str) -> InputError:
    return InputError(f"'{name}' has a hook ({kind.strip('_')}), which would never be called: "
                      "remove it, and return what you need from the module's forward")


def _refuse(path: str, what: str, *args: Any, **options: Any) -> NoReturn:
    raise InputError(f"'{path}' cannot be {what} by itself, because its weights are this rank's "
                     "parts: use the whole model, or a plain module with model.state_dict()")


def _state_dict(path: str, part: nn.Module, *args: Any, destination: Any = None,
                **options: Any) -> Any:
    """Save nothing in the state of the whole model, which saves all of it."""
    if destination is None:
        _refuse(path, "saved")
    return type(part).state_dict(part, destination=destination, **options)


def _nothing(*args: Any) -> None:
    """Save or load nothing."""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")

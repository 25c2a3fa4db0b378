"""The user's tree of modules over a rank's parts of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcpar.errors import InputError

#: Dictionaries of hooks, of a module and of a parameter.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
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
        self._parts = dict(self.root.named_modules())
        self._options = [(path, part, _options(part)) for path, part in self._parts.items()]
        self._members: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
            (path, now, dict(now)) for path, part in self._parts.items()
            for now in (part._modules, part._parameters, part._buffers)]
        self._addresses = [(name, tensor, tensor.data_ptr()) for name, tensor in (
            *self.root.named_parameters(), *self.root.named_buffers())]

    def require_unchanged(self) -> None:
        """Check that nothing has changed that the plan would have to see.

        Raises
        ------
        InputError
            An option, a submodule or a tensor is another one, or there is a hook.
        """
        self.require_own_tensors()
        for name, tensor, _ in self._addresses:
            _require_none(name, tensor, _HOOKS_OF_TENSORS)
        for path, part, options in self._options:
            for name, value in options.items():
                now = vars(part).get(name, self)
                if now is not value and not (type(now) is type(value) and now == value):
                    raise _changed(path, name)
            _require_none(path, part, _HOOKS)

    def require_own_tensors(self) -> None:
        """Check that no submodule or tensor has been replaced or moved."""
        for path, members, before in self._members:
            if len(members) != len(before) or any(members.get(name, self) is not value
                                                  for name, value in before.items()):
                raise _changed(path, next(
                    name for name in (*members, *before) if name not in before
                    or members.get(name, self) is not before[name]))
        for name, tensor, address in self._addresses:
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
        made._modules[name] = child and _copied(child, _joined(path, name), replaced, memo)
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


def _require_none(name: str, of: Any, hooks: tuple[str, ...]) -> None:
    for kind in hooks:
        if getattr(of, kind):
            raise InputError(f"'{name}' has a hook ({kind.strip('_')}), which would never be "
                             "called: remove it, and return what you need from the module's "
                             "forward")


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

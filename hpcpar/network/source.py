"""Networks of the user: a Python function ``module:function``, or an ONNX file."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Protocol

from hpcpar.errors import InputError, unknown
from hpcpar.network.base import Shape, image_of, shape_text
from hpcpar.network.graph import Network


class NetworkFunction(Protocol):
    """A function of the user that returns a network."""

    def __call__(self, **arguments: object) -> object: ...


def is_source(name: str) -> bool:
    """Whether `name` is ``module:function`` or the path of an ONNX file."""
    return ":" in name or name.endswith(".onnx")


def load(name: str, shape: Shape | None = None, classes: int | None = None) -> Network:
    """Build the network of a function or read the one of a file.

    Raises
    ------
    InputError
        The source cannot be used, or the network has another sample shape or number of classes
        than given.
    """
    if name.endswith(".onnx"):
        from hpcpar.network import onnx  # imported only if needed

        net = onnx.load(name, shape)
    else:
        options: dict[str, object] = {"shape": shape, "classes": classes}
        net = _call(name, {key: value for key, value in options.items() if value is not None})
    if shape is not None and net.image_shape != image_of(shape):
        raise InputError(f"network '{name}' takes inputs {shape_text(net.image_shape)}, not "
                         f"{shape_text(shape)}; leave --input out, or give its function a "
                         "parameter 'shape'")
    if classes is not None and net.classes != classes:
        raise InputError(f"network '{name}' has {net.classes} outputs, not {classes}; leave "
                         "--classes out, or give its function a parameter 'classes'")
    return net


@contextlib.contextmanager
def _current_directory_first() -> Iterator[None]:
    """Make modules of the current directory importable, as ``python -m`` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _call(name: str, given: dict[str, object]) -> Network:
    """Call ``module:function`` with those of `given` that its signature accepts."""
    with _current_directory_first():
        function = _find(name)
        try:
            net = function(**_arguments(name, function, given))
        except InputError:
            raise
        except (Exception, SystemExit) as err:  # user code may raise anything
            raise InputError(f"network '{name}': the function raised {_one_line(err)}") from err
    if not isinstance(net, Network):
        hint = "; return what build() gives" if hasattr(net, "build") else ""
        raise InputError(
            f"network '{name}': the function returned a {type(net).__name__}, not a Network{hint}")
    return net


def _find(name: str) -> NetworkFunction:
    """The function ``module:function``."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise InputError(f"network '{name}': write module:function, as in my_networks:tiny")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as err:  # importing runs user code
        raise InputError(
            f"network '{name}': cannot import '{module_name}' ({_one_line(err)}); write "
            "module:function for a module of the current directory or an installed one") from err
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)
                 and value.__module__ == module.__name__]
        raise unknown(f"function of '{module_name}'", attribute, known)
    function: NetworkFunction = getattr(module, attribute)
    if not callable(function):
        raise InputError(
            f"network '{name}': '{attribute}' is a {type(function).__name__}, not a function")
    return function


def _arguments(name: str, function: NetworkFunction,
               given: dict[str, object]) -> dict[str, object]:
    """Those of `given` that the function's signature accepts, checked to be all it needs."""
    signature = inspect.signature(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    arguments = {key: value for key, value in given.items()
                 if takes_any or key in signature.parameters}
    try:
        signature.bind(**arguments)
    except TypeError as err:
        raise InputError(f"network '{name}': {err}; give --input and --classes for 'shape' and "
                         "'classes', and every other parameter a default") from err
    return arguments


def _one_line(err: BaseException) -> str:
    """Type and message of an exception on one line."""
    text = " ".join(str(err).split())
    return f"{type(err).__name__}: {text}" if text else type(err).__name__

"""Networks that the user wrote: a Python function ``module:function``, or an ONNX file."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from hpcpar.errors import InputError, unknown
from hpcpar.network.base import Shape, text_of
from hpcpar.network.graph import Network


def is_source(name: str) -> bool:
    """Whether `name` is ``module:function`` or the path of an ONNX file."""
    return ":" in name or name.endswith(".onnx")


def load(name: str, shape: Shape | None = None, classes: int | None = None) -> Network:
    """The network that the function builds or the file holds, at this sample shape.

    Raises
    ------
    InputError
        Whatever goes wrong on the way; also a network of another shape or of other classes than
        asked for.
    """
    if name.endswith(".onnx"):
        from hpcpar.network import onnx  # not every user of networks reads such files

        net = onnx.load(name, shape)
    else:
        net = _call(name,
                    {key: value for key, value in (("shape", shape), ("classes", classes))
                     if value is not None})
    if shape is not None and net.image_shape != tuple(shape):
        raise InputError(f"network '{name}' takes inputs {text_of(net.image_shape)}, not {text_of(shape)}; leave --input out, "
                         "or give its function a parameter 'shape'")
    if classes is not None and net.classes != classes:
        raise InputError(f"network '{name}' has {net.classes} outputs, not {classes}; leave --classes out, "
                         "or give its function a parameter 'classes'")
    return net


@contextlib.contextmanager
def _current_directory_first() -> Iterator[None]:
    """Modules of the current directory can be imported, as under ``python -m``."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _call(name: str, given: dict[str, Any]) -> Network:
    """``module:function`` called with those of `given` that its signature takes."""
    with _current_directory_first():
        function = _find(name)
        try:
            net = function(**_arguments(name, function, given))
        except InputError:
            raise
        except (Exception, SystemExit) as err:  # user code may raise anything
            raise InputError(f"network '{name}': the function raised {_line(err)}") from err
    if not isinstance(net, Network):
        hint = "; return what build() gives" if hasattr(net, "build") else ""
        raise InputError(
            f"network '{name}': the function returned a {type(net).__name__}, not a Network{hint}")
    return net


def _find(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise InputError(f"network '{name}': write module:function, as in my_networks:tiny")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as err:  # importing runs user code
        raise InputError(f"network '{name}': cannot import '{module_name}' ({_line(err)}); write module:function for a module of "
                         "the current directory or an installed one") from err
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)
                 and value.__module__ == module.__name__]
        raise unknown(f"function of '{module_name}'", attribute, known)
    function: Callable[..., Any] = getattr(module, attribute)
    if not callable(function):
        raise InputError(
            f"network '{name}': '{attribute}' is a {type(function).__name__}, not a function")
    return function


def _arguments(name: str, function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    rest = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    out = {key: value for key, value in given.items() if rest or key in parameters}
    try:
        inspect.signature(function).bind(**out)
    except TypeError as err:
        raise InputError(f"network '{name}': {err}; give --input and --classes for 'shape' and 'classes', and every other "
                         "parameter a default") from err
    return out


def _line(err: BaseException) -> str:
    """An exception on one line."""
    text = " ".join(str(err).split())
    return f"{type(err).__name__}: {text}" if text else type(err).__name__

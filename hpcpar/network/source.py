"""Users' networks from Python functions or ONNX files, and the modules of --layers."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from hpcpar.errors import InputError, one_line, unknown
from hpcpar.network.graph import Network
from hpcpar.network.layers.base import Shape, image_of, shape_text
from hpcpar.network.read.torch_module import from_torch, is_module

if TYPE_CHECKING:
    from torch.nn import Module


class NetworkFunction(Protocol):
    """A user's function or class that returns a network or a PyTorch module."""

    def __call__(self, **arguments: object) -> object: ...


def load(name: str, shape: Shape | None = None, classes: int | None = None) -> Network:
    """The network that a function builds or an ONNX file contains.

    Raises
    ------
    InputError
        The source cannot be used, or its sample shape or number of classes differs from the given
        one.
    """
    if name.endswith(".onnx"):
        from hpcpar.network.read import onnx  # imported only if needed

        net = onnx.load(name, shape)
    else:
        net = _call(name, shape, classes)
    if shape is not None and net.image_shape != image_of(shape):
        raise InputError(f"network '{name}' takes inputs {shape_text(net.image_shape)}, not "
                         f"{shape_text(shape)}; leave --input out, or give its function a "
                         "parameter 'shape'")
    if classes is not None and net.classes != classes:
        raise InputError(f"network '{name}' has {net.classes} outputs, not {classes}; leave "
                         "--classes out, or give its function a parameter 'classes'")
    return net


def no_network(path: str) -> InputError:
    """The error for a file that is missing, or does not say which network it holds."""
    if not os.path.exists(path):
        return InputError(f"network '{path}': no such file; write file.py:function, "
                          "module:function, a .onnx or .json file, or a name that hpcpar networks "
                          "lists")
    if not path.endswith(".py"):
        return InputError(f"network '{path}': it is not a network file; give a .onnx file, a .json "
                          "file from hpcpar networks -o, or file.py:function")
    names = defined_in(path)
    return InputError(f"network '{path}': name the function or class that makes the network, as "
                      f"in {path}:{names[0] if names else 'make'}"
                      + (f" (known: {', '.join(names)})" if names else ""))


def defined_in(path: str | None) -> list[str]:
    """Public functions and classes of a Python file, read without running it."""
    try:
        tree = ast.parse(Path(path or "").read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")]


def load_modules(names: Iterable[str]) -> None:
    """Imports a user's modules with layers, strategies and the like.

    Parameters
    ----------
    names : iterable of str
        Names of modules, or paths of their files.
    """
    for name in names:
        if (name.endswith(".py") or os.sep in name) and not os.path.exists(name):
            raise InputError(f"--layers {name}: no such file; name a file.py, an installed module, "
                             "or one in the current directory")
        with _first_on_path(name):
            try:
                _imported(name)
            except (Exception, SystemExit) as err:  # importing runs user code
                raise InputError(
                    f"--layers {name}: cannot import it ({one_line(err)}); name a file.py, an "
                    "installed module, or one in the current directory") from err


@contextlib.contextmanager
def _first_on_path(name: str) -> Iterator[None]:
    """Puts a module's folder first on the module path: its file's, or the current one as
    ``python -m`` does.
    """
    folder = str(Path(name).parent.resolve()) if name.endswith(".py") else os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def load_module(name: str, shape: Shape | None = None,
                classes: int | None = None) -> tuple[Module, Shape]:
    """The PyTorch module that a function returns, and its sample shape.

    Raises
    ------
    InputError
        The function cannot be called, or returns something else.
    """
    if name.endswith((".json", ".onnx")):
        raise InputError(f"network '{name}': the file lacks the names of the module's tensors; "
                         "give the module itself, file.py:function")
    made, sample = _made(name, shape, classes)
    if not is_module(made):
        raise InputError(f"network '{name}': give a function file.py:function that returns a "
                         f"torch.nn.Module, not a {type(made).__name__}")
    return cast("Module", made), sample


def _made(name: str, shape: Shape | None, classes: int | None) -> tuple[object, Shape]:
    """The result of a function and, for a PyTorch module, its sample shape.

    The function gets `shape` and `classes` if its signature accepts them.
    """
    options: dict[str, object] = {"shape": shape, "classes": classes, "num_classes": classes}
    given = {key: value for key, value in options.items() if value is not None}
    with _first_on_path(name.rpartition(":")[0]):
        function = _find(name)
        try:
            with _seeded():
                made = function(**_arguments(name, function, given))
        except InputError:
            raise
        except (Exception, SystemExit) as err:  # user code may raise anything
            raise InputError(f"network '{name}': the function raised {one_line(err)}") from err
    return made, _sample_shape(name, function, shape) if is_module(made) else ()


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """PyTorch's random numbers from a fixed seed: parts that run whole take their initial weights'
    mean and deviation from the module, and all plans start alike.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        yield


def _call(name: str, shape: Shape | None, classes: int | None) -> Network:
    """The network that a function returns, traced if it is a PyTorch module."""
    net, sample = _made(name, shape, classes)
    if is_module(net):
        return from_torch(cast("Module", net), sample)
    if not isinstance(net, Network):
        hint = "; return what build() gives" if hasattr(net, "build") else ""
        raise InputError(f"network '{name}': the function returned a {type(net).__name__}, not a "
                         f"Network or a torch.nn.Module{hint}")
    return net


def _sample_shape(name: str, function: NetworkFunction, shape: Shape | None) -> Shape:
    """The given sample shape, or the default of the function's parameter ``shape``."""
    parameter = inspect.signature(function).parameters.get("shape")
    default = None if parameter is None else parameter.default
    if shape is None and not isinstance(default, tuple):
        raise InputError(f"network '{name}': a PyTorch module does not state its image size; give "
                         "--input, or give its function a parameter 'shape' with a default")
    return cast(Shape, default) if shape is None else tuple(shape)


def _find(name: str) -> NetworkFunction:
    """The function ``module:function``."""
    module_name, _, attribute = name.rpartition(":")
    if module_name.endswith(".py") and not (os.path.exists(module_name)
                                            and attribute.isidentifier()):
        raise no_network(module_name)
    if not module_name or not attribute.isidentifier():
        raise InputError(f"network '{name}': write module:function, as in my_networks:tiny")
    try:
        module = _imported(module_name)
    except (Exception, SystemExit) as err:  # importing runs user code
        raise InputError(
            f"network '{name}': cannot import '{module_name}' ({one_line(err)}); write "
            "file.py:function, or module:function for an installed module or one in the current "
            "directory") from err
    if not hasattr(module, attribute):
        raise unknown(f"function in {module_name}:", attribute, defined_in(module.__file__))
    function: NetworkFunction = getattr(module, attribute)
    if not callable(function):
        raise InputError(
            f"network '{name}': '{attribute}' is a {type(function).__name__}, not a function")
    return function


def _imported(name: str) -> ModuleType:
    """A module by its name, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    loaded = sys.modules.get(Path(name).stem)
    file = getattr(loaded, "__file__", None)
    if loaded is not None and file and os.path.exists(name) and os.path.samefile(file, name):
        return loaded  # a second import would register its layers again
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as dataclasses and pickles expect
    spec.loader.exec_module(module)
    return module


def _arguments(name: str, function: NetworkFunction,
               given: dict[str, object]) -> dict[str, object]:
    """The given arguments that the function accepts, checked to include all that it requires."""
    signature = inspect.signature(function)
    arguments = {key: value for key, value in given.items() if key in signature.parameters}
    try:
        signature.bind(**arguments)
    except TypeError as err:
        raise InputError(f"network '{name}': {err}; give --input and --classes for 'shape' and "
                         "'classes', and every other parameter a default") from err
    return arguments


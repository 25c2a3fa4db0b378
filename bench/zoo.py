"""Networks of public zoos: how many are imported, lowered and, with --execute, equal PyTorch.

Run in an environment of its own, with torch and the packages of `bench.zoo_packages.VERSIONS`
beside this package's requirements: ``python bench/zoo.py [--execute] [--zoo timm] [--aside]``.
`bench/zoo_list.py` and `bench/zoo_packages.py` draw the list. Each network is built and tried in a
process of its own. Prints the count of each zoo, and the reasons of refusals. A network counts as
one of attention where it is refused and multiplies two computed matrices. `--fresh SEED` draws
networks that the list does not have.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from bench.random_networks import Step, Truth, truth_of  # noqa: E402
from bench.zoo_list import ZOOS as FIRST  # noqa: E402
from bench.zoo_list import Candidate, fresh  # noqa: E402
from bench.zoo_packages import PACKAGES  # noqa: E402
from hpcpar.comm.communicator import Communicator  # noqa: E402
from hpcpar.comm.world import world  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.kernels import backend  # noqa: E402
from hpcpar.network import from_torch  # noqa: E402
from hpcpar.network.graph import Network  # noqa: E402
from hpcpar.network.layers import MeanSquaredError, Outputs  # noqa: E402
from hpcpar.network.read.torch_module import traced  # noqa: E402
from hpcpar.plan.plan import NetworkSpec, make_plan  # noqa: E402
from hpcpar.schedule.lower import lower  # noqa: E402
from hpcpar.schedule.runnable import require_own_training  # noqa: E402
from hpcpar.schedule.steps import Comm  # noqa: E402
from tests.collectives import BY_KIND  # noqa: E402

ZOOS = FIRST | PACKAGES
#: Memory of a network's process.
MEMORY_BYTES = 12 << 30
#: Functions that only fill new weights.
FILLS = frozenset(("normal_", "uniform_", "trunc_normal_", "erfinv_", "fill_", "zero_", "mul_",
                   "add_", "clamp_", "copy_", "bernoulli_"))


class Unfilled(TorchFunctionMode):
    """Leaves new weights as the memory is: building large networks takes no time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else None
        large = (isinstance(first, torch.Tensor) and first.is_floating_point()
                 and first.numel() > 4096)
        if large and getattr(func, "__name__", "") in FILLS:
            return first
        return func(*args, **(kwargs or {}))


def algorithm(step: Comm) -> tuple[str, int]:
    """Rings, for every collective."""
    return BY_KIND[step.pattern.kinds[0]][0], 1


def is_attention(module: torch.nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a network multiplies two computed matrices, as attention over pixels does."""
    try:
        program = torch.export.export(module.train(), (torch.zeros(2, *shape),), strict=False)
    except Exception:  # it is refused because it cannot be traced
        return False
    nodes = program.graph.nodes
    stored = {node for node in nodes if node.op == "placeholder"} - {
        node for node in nodes if node.name in program.graph_signature.user_inputs}
    for node in nodes:
        if any(source in stored for source in node.all_input_nodes) and len(
                set(node.all_input_nodes) - stored) == 0:
            stored.add(node)
    return any("scaled_dot_product" in str(node.target) or (
        re.search(r"aten\.(matmul|bmm|baddbmm|einsum)\b", str(node.target))
        and not stored & set(node.all_input_nodes)) for node in nodes)


def own_shape(module: torch.nn.Module) -> tuple[int, ...]:
    """The sample shape that a module of pytorchcv states."""
    first = next(p for p in module.parameters() if p.dim() == 4)
    return (1 if first.shape[1] == 1 else 3, *module.in_size)


def try_import(candidate: Candidate) -> dict[str, object]:
    """Import and lower a network of its usual size."""
    with Unfilled():
        module = candidate.make(candidate.shape)
    shape = candidate.shape or own_shape(module)
    try:
        network = from_torch(module, shape, MeanSquaredError)
    except InputError:
        try:  # for hpcpar.torch, where outputs may be several, of any shape
            network = traced(module, shape, Outputs).network
        except InputError as err:
            if is_attention(module, shape):
                return {"result": "attention", "why": str(err)}
            raise
    spec = NetworkSpec.of(network)
    assert spec.build() == network
    plan = make_plan(spec, "data", 2, 2, network=network)
    lower(network, plan, algorithm)
    return {"result": "imported", "outputs": len(network.layers[-1].inputs),
            "layers": len(network.layers), "notes": network.notes[:2],
            "missing": missing(module, network)}


def missing(module: torch.nn.Module, network: Network) -> str:
    """How many parameters of the module no layer has."""
    ours = sum(layer.parameters(network.input_shape(layer)) for layer in network.layers)
    theirs = sum(p.numel() for p in module.parameters())
    return "" if ours == theirs else f"{ours} of {theirs} parameters"


def prepared(candidate: Candidate, small: bool = True) -> torch.nn.Module:
    """A network, of small images, in float64, without random numbers and divisions by nearly 0."""
    torch.manual_seed(0)
    module = candidate.make(candidate.small if small else candidate.shape).double().train()
    for name, p in module.named_parameters():
        if p.is_complex():  # `double` leaves them out
            owner = module.get_submodule(name.rpartition(".")[0])
            setattr(owner, name.rpartition(".")[2], torch.nn.Parameter(p.detach().to(
                torch.cdouble)))
    for part in module.modules():
        if hasattr(part, "eps"):
            part.eps = max(part.eps, 1e-3) if isinstance(part.eps, float) else part.eps
        for name in ("p", "drop_rate", "drop_prob"):  # random numbers cannot be compared
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() <= 1 or p.numel() == max(p.shape):
                p.add_(0.1 * torch.randn_like(p))
    return module


def truth(candidate: Candidate) -> Truth:
    """One step of a module in PyTorch, and its network."""
    module = prepared(candidate)
    network = from_torch(module, candidate.small, MeanSquaredError)
    require_own_training(network)
    return truth_of(module, candidate.small, 2, MeanSquaredError, network)


def try_execute(candidate: Candidate) -> dict[str, object]:
    """Train a step of a small image on one rank, beside PyTorch; of one output."""
    given = truth(candidate)
    plan = make_plan(NetworkSpec.of(given.network), "data", 1, 2, network=given.network,
                     precision="fp64")
    faults = Step(given, plan, Communicator(world(), backend("cpu"))).faults()
    return {"executed": "equal" if not faults else "; ".join(faults[:3])}


def tried(candidate: Candidate, execute: bool, limit_s: int) -> dict[str, object]:
    """The result of a network, from a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as out:
            out.write(json.dumps(_result(candidate, execute, limit_s)))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text or '{"result": "killed"}')


def _result(candidate: Candidate, execute: bool, limit_s: int) -> dict[str, object]:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    found: dict[str, object] = {}
    for step in (try_import, try_execute) if execute else (try_import,):
        signal.alarm(limit_s)
        try:
            found |= step(candidate)
        except KeyboardInterrupt:
            found |= {"result" if step is try_import else "executed": f"over {limit_s} s"}
        except InputError as err:
            found |= {"result" if step is try_import else "executed": f"refused: {err}"}
        except BaseException as err:
            where = traceback.extract_tb(err.__traceback__)[-1]
            found |= {"result" if step is try_import else "executed":
                      f"{type(err).__name__}: {str(err)[:300]} ({where.filename}:{where.lineno})"}
        finally:
            signal.alarm(0)
        if found.get("result") != "imported" or found["outputs"] != 1:
            break
    return found


def reasons(text: str) -> list[str]:
    """The reasons of a refusal, without the names of nodes."""
    found = [re.sub(r"^node[s]? .*?\((.*?)\)", r"\1", part.strip())
             for part in re.split(r"; (?=node)", text.partition(": ")[2])]
    return sorted({re.sub(r"\d+(x\d+)*|'[^']*'", "#", each)[:150] for each in found})


def show(zoo: str, count: collections.Counter[str]) -> None:
    """Print the counts of a zoo."""
    share = count["imported"] / max(count["all"], 1)
    print(f"{zoo:20} {count['imported']:4} of {count['all']:4} ({share:.1%}) imported, "
          f"{count['several']} with several outputs, {count['noted']} with notes; "
          f"{count['attention']} attention networks refused; {count['equal']} of "
          f"{count['executed']} executed equal PyTorch")


def report(results: dict[str, dict[str, Any]]) -> None:
    """Print counts and reasons."""
    count: dict[str, collections.Counter[str]] = {}
    groups: dict[str, list[str]] = {}
    for name, found in results.items():
        zoo = name.partition("/")[0]
        each = count.setdefault(zoo, collections.Counter())
        if found["result"] == "attention":
            each["attention"] += 1
            continue
        each["all"] += 1
        each["imported"] += found["result"] == "imported"
        each["several"] += found.get("outputs", 1) > 1
        each["noted"] += bool(found.get("notes"))
        if "executed" in found:
            each["executed"] += 1
            each["equal"] += found["executed"] == "equal"
        if found["result"] != "imported":
            for reason in reasons(str(found["result"])) or [str(found["result"])]:
                groups.setdefault(reason, []).append(name)
    total: collections.Counter[str] = collections.Counter()
    for zoo, each in count.items():
        total.update(each)
        show(zoo, each)
    show("all", total)
    for reason, names in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(names):4}  {reason}\n        {', '.join(names[:6])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zoo", default=",".join(ZOOS), help="names, separated by commas")
    parser.add_argument("--only", default="", help="a pattern of names")
    parser.add_argument("--execute", action="store_true", help="train a step of each, too")
    parser.add_argument("--aside", action="store_true", help="those that are kept aside instead")
    parser.add_argument("--fresh", type=int, metavar="SEED",
                        help="networks that the list does not have, drawn by this seed")
    parser.add_argument("--limit", type=int, default=150, help="seconds for each network and step")
    parser.add_argument("--part", default="0/1", help="every so many-th network: i/n")
    parser.add_argument("--json", help="file of results: those that are there are kept")
    parser.add_argument("--again", default="", help="kept results that are made again: a pattern")
    parser.add_argument("--list", action="store_true", help="print the names alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    part, parts = map(int, args.part.split("/"))
    listed = [c for zoo in args.zoo.split(",") for c in ZOOS[zoo]()
              if c.aside == args.aside]
    candidates = [c for c in (listed if args.fresh is None else fresh(args.fresh))
                  if re.search(args.only, f"{c.zoo}/{c.name}")][part::parts]
    if args.list:
        print(*(f"{c.zoo}/{c.name} {c.shape}" for c in candidates), sep="\n")
        return
    file = Path(args.json or os.devnull)
    results = json.loads(file.read_text() or "{}") if file.exists() else {}
    for c in candidates:
        name, begin = f"{c.zoo}/{c.name}", time.perf_counter()
        if name in results and not (args.again and re.search(args.again, str(results[name]))):
            continue
        results[name] = tried(c, args.execute, args.limit)
        print(name, f"{time.perf_counter() - begin:.0f} s", str(results[name])[:400],
              file=sys.stderr, flush=True)
        if args.json:
            file.write_text(json.dumps(results, indent=1))
    report({f"{c.zoo}/{c.name}": results[f"{c.zoo}/{c.name}"] for c in candidates})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

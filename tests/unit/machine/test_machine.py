"""Machine files: presets, round trips, clear errors, and which level a group of ranks needs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Level, Machine
from hpcpar.plan.config import Config
from hpcpar.schedule.steps import Group


@pytest.mark.parametrize("name", files.presets())
def test_presets_load_and_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    machine = files.load(name)
    path = str(tmp_path / "m.toml")
    files.save(machine, path)
    assert files.load(path) == machine
    assert machine.name == name and machine.notes
    assert [p.name for p in tmp_path.iterdir()] == ["m.toml"]


def test_cori_has_the_papers_constants() -> None:
    level = files.load("cori-knl").levels[-1]
    assert level.alpha_s == 2e-6
    assert 1 / level.beta_s_per_byte == pytest.approx(6e9)


def good() -> dict[str, Any]:
    return {
        "name": "m",
        "device": {"memory_bytes": 10**9, "flops_per_s": 1e9, "bandwidth_bytes_per_s": 1e9},
        "levels": [
            {"name": "node", "ranks": 4, "alpha_s": 1e-6, "beta_s_per_byte": 1e-10,
             "small_alpha_s": 5e-7, "small_bytes": 100},
            {"name": "all", "ranks": 0, "alpha_s": 2e-6, "beta_s_per_byte": 2e-10},
        ],
        "compute": {"conv2d.forward x=1": 0.5},
    }


def test_files_keep_their_content(tmp_path: Path) -> None:
    machine = files.from_dict(good())
    assert machine.levels[0].latency_s(100) == 5e-7 and machine.levels[0].latency_s(101) == 1e-6
    files.save(machine, str(tmp_path / "m.toml"))
    assert files.load(str(tmp_path / "m.toml")) == machine
    assert files.from_dict(files.to_dict(machine)) == machine


def test_ranks_that_share_cores_are_reported(tmp_path: Path) -> None:
    """A node holds 4 ranks; a preset's cores are unknown."""
    assert files.from_dict(good()).caution(8) == ""
    machine = files.from_dict(good() | {"cores_per_node": 3})
    files.save(machine, str(tmp_path / "m.toml"))
    assert files.load(str(tmp_path / "m.toml")) == machine
    assert machine.caution(3) == ""
    assert machine.caution(8) == "4 ranks share 3 cores: times are less certain"


def test_fields_of_earlier_versions_are_ignored() -> None:
    """Harmless ones silently; times in processor time with a warning."""
    old = {"late": [[1e-3, 2e-4]], "relay": [[0.0, 1e-4]]}
    assert files.from_dict(good() | old | {"device": good()["device"] | {"at_once": 0.0}}) == (
        files.from_dict(good()))
    shared = files.from_dict(good() | old | {"device": good()["device"] | {"at_once": 1.5}})
    assert "calibrate again" in shared.caution(1)
    assert files.from_dict(files.to_dict(shared)) == shared


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": 3}, "'name': expected a text, found 3"),
    ({"device": {"memory_bytes": 1, "flops_per_s": 1.0}}, "'bandwidth_bytes_per_s' is missing"),
    ({"device": {"memory_bytes": 1, "flops_per_s": -1.0, "bandwidth_bytes_per_s": 1.0}},
     "'device', 'flops_per_s': expected a number greater than 0, found -1"),
    ({"device": {"memory_bytes": 1, "flops_per_s": "fast", "bandwidth_bytes_per_s": 1.0}},
     "'flops_per_s': expected a number, found 'fast'"),
    ({"device": {"memory_bytes": -1, "flops_per_s": 1.0, "bandwidth_bytes_per_s": 1.0}},
     "'memory_bytes': expected a whole number of at least 1, found -1"),
    ({"device": {"memory_bytes": 1, "flops_per_s": 1e308, "bandwidth_bytes_per_s": 1.0}},
     "'flops_per_s': expected a number of at most 1e+30"),
    ({"overlap": 1.5}, "'overlap': expected a number of at most 1, found 1.5"),
    ({"quality": {"links": [float("inf")]}},
     "'quality', 'links', entry 1: expected a finite number, found inf"),
    ({"levels": []}, "no [[levels]]"),
    ({"levels": [{"name": str(i), "ranks": 2**i, "alpha_s": 0, "beta_s_per_byte": 1}
                for i in range(33)]}, "33 [[levels]]; give at most 32"),
    ({"levels": 3}, "'levels': expected a list, found 3"),
    ({"cores_per_node": 1.5}, "'cores_per_node': expected a whole number, found 1.5"),
    ({"levels": [{"name": "a", "ranks": 0, "alpha_s": -1.0, "beta_s_per_byte": 1.0}]},
     "'levels', entry 1, 'alpha_s': expected a number of at least 0, found -1"),
    ({"levels": [{"name": n, "ranks": r, "alpha_s": 0, "beta_s_per_byte": 1}
                 for n, r in (("a", 4), ("b", 6))]},
     "must hold whole units"),
    ({"compute": {"k": float("nan")}}, "'compute', 'k': expected a finite number, found nan"),
    ({"levles": []}, "did you mean 'levels'"),
    ({"device": 3}, "'device': expected a table of names and values, found 3"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_content_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as err:
        files.from_dict(good() | change, "file x")
    assert message in str(err.value) and "file x" in str(err.value)


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'cori-knl'"):
        files.load("cori-kln")
    with pytest.raises(InputError, match="cannot read machine file"):
        files.load(str(tmp_path / "none.toml"))
    (tmp_path / "x.toml").write_text("levels = [")
    with pytest.raises(InputError, match="not TOML"):
        files.load(str(tmp_path / "x.toml"))
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not text"):
        files.load(str(tmp_path / "b.toml"))
    with pytest.raises(InputError, match="cannot write"):
        files.save(files.load("local"), str(tmp_path / "no" / "m.toml"))


CONFIGS = [Config(n=4, c=3, replicas=2), Config(n=2, h=3, w=2, c=2), Config(n=8, replicas=3),
           Config(h=6, w=2), Config(n=5, c=4)]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("unit", [1, 2, 3, 4, 5, 6, 8, 12, 24, 100])
def test_every_group_has_its_level(config: Config, unit: int) -> None:
    """Against walking all groups of all combinations of mesh axes."""
    machine = Machine("m", files.load("local").device,
                      (Level("in", unit, 1.0, 1.0), Level("out", 0, 2.0, 2.0)))
    axes = [d for d in config.mesh_axes.values() if d.size > 1]
    for k in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, k):
            group = Group(chosen)
            inside = all(len({m // unit for m in group.members(rank)}) == 1
                         for rank in range(config.ranks))
            block = max(d.stride * d.size for d in chosen)
            level = machine.levels[machine.level_index_for(block, config.ranks)]
            assert level.name == ("in" if inside else "out"), (chosen, unit)


def test_two_ranks_have_a_level_between_them() -> None:
    machine = files.from_dict(good())
    assert machine.level_between(0, 3).name == "node" and machine.level_between(3, 4).name == "all"

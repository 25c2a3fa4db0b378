"""The machines that come with the package: the published figures, fields of files, errors, and what
the command shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcpar.cli.main import main
from hpcpar.errors import InputError
from hpcpar.io.schema import parse_toml
from hpcpar.machine import catalog, files

#: Priced by one rate, fitted to what was measured.
ONE_RATE = {"abci-v100", "cori-knl", "fugaku", "h100x8", "k20x8", "k80x16", "local", "p100x4x4"}
#: Priced by the model of kernels, from data sheets.
DATA_SHEETS = {
    "alps", "aurora", "aws-p5", "dgx-a100", "dgx-b200", "dgx-h100", "dgx1-p100", "dgx1-v100",
    "dgx2", "frontier", "jupiter", "juwels-booster", "leonardo", "lumi-g",
    "p2.8xlarge", "perlmutter", "piz-daint", "summit",
}
NAMES = ONE_RATE | DATA_SHEETS


def test_every_preset_names_its_sources() -> None:
    assert set(files.presets()) == NAMES
    for name in NAMES:
        machine = files.load(name)
        assert len(files.sources(name)) >= 2 and len(machine.notes) > 40
        assert machine.levels[-1].ranks == 0


@pytest.mark.parametrize("name", sorted(ONE_RATE - {"cori-knl", "fugaku", "local"}))
def test_devices_are_plausible(name: str) -> None:
    device = files.load(name).device
    # above 1 by algorithms that skip counted arithmetic
    assert 0.2 < device.flops_per_s / device.peak_flops_per_s < 1.6
    assert 10 < device.flops_per_s / device.bandwidth_bytes_per_s < 100  # flops a byte, of a GPU


@pytest.mark.parametrize("name", sorted(NAMES))
def test_presets_use_devices_of_the_catalog(name: str) -> None:
    machine = files.load(name)
    assert bool(machine.device.multiprocessors) == (name in DATA_SHEETS)
    assert machine.device.name in (catalog.names() if name in DATA_SHEETS else [""])
    if name in DATA_SHEETS:
        assert any("Missing in these sources" in line for line in files.sources(name))


def test_pairs_and_tiles_are_levels_of_their_own() -> None:
    for name in "frontier", "lumi-g", "aurora", "summit":
        inner, node, network = files.load(name).levels
        assert inner.beta_s_per_byte < node.beta_s_per_byte and network.ranks == 0
        assert node.ranks % inner.ranks == 0


def test_abci_has_the_published_figures() -> None:
    machine = files.load("abci-v100")
    node, rack, system = machine.levels
    assert [machine.inner_ranks(i) for i in range(3)] == [1, 4, 68]
    assert 1 / node.beta_s_per_byte == pytest.approx(20e9)
    assert rack.shared_links == 2 and 1 / rack.beta_s_per_byte == pytest.approx(12.5e9)
    assert system.shared_links == pytest.approx(17 * 2 / 3)
    assert machine.device.memory_bytes == 16e9
    # ParaDL's public tool: VGG-16's gradients over 16 GPUs, 2500 iterations an epoch, a flat ring
    # at the rate between nodes
    ring_s = 2 * 2500 * 15 * (30.31e-6 + 169_801_408 * 4 / 16 * rack.beta_s_per_byte)
    assert ring_s == pytest.approx(256.98, abs=0.01)


def test_k20_halves_bandwidth_across_groups() -> None:
    machine = files.load("k20x8")
    group, host = machine.levels
    assert group.ranks == 4 and 1 / group.beta_s_per_byte == pytest.approx(6e9)
    assert host.shared_links / machine.inner_ranks(1) == 0.5 and host.alpha_s > group.alpha_s


def test_k80_prices_deepas_table_2() -> None:
    level = files.load("k80x16").levels[-1]
    assert 1 / level.beta_s_per_byte == pytest.approx(2.247e9)
    # ms: 16 copies of the input
    assert 1e3 * 16 * 512 * 9216 * 4 * level.beta_s_per_byte == pytest.approx(134.4, abs=0.1)
    # ms: 16 updates
    assert 1e3 * 16 * 9216 * 4096 * 4 * level.beta_s_per_byte == pytest.approx(1075, abs=0.5)


def test_p100_and_h100() -> None:
    node, network = files.load("p100x4x4").levels
    assert (node.ranks, network.links) == (4,
                                           1) and 1 / network.beta_s_per_byte == pytest.approx(
        12.5e9)
    machine = files.load("h100x8")
    assert machine.levels[0].ranks == 8 and machine.levels[1].shared_links == machine.inner_ranks(1)
    assert machine.levels[0].beta_s_per_byte > 1 / 450e9 and machine.levels[
        1].beta_s_per_byte > 1 / 50e9


def test_the_page_shows_a_file_that_reads_and_every_preset() -> None:
    docs = Path(__file__).parents[3] / "docs" / "reference"
    page = (docs / "machines.md").read_text(encoding="utf-8")
    example = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    machine = files.from_dict(parse_toml(example[1], "the page", ""))
    assert [level.links for level in machine.levels] == [3, 2,
                                                         34] and machine.levels[
        1].small_bytes == 4096
    assert set(re.findall(r"^\| `([\w.-]+)` \|", page, re.MULTILINE)) == NAMES


def good(**level: Any) -> dict[str, Any]:
    return {
        "name": "m",
        "device": {"memory_bytes": 10**9, "flops_per_s": 1e9, "bandwidth_bytes_per_s": 1e9},
        "levels": [{"name": "all", "ranks": 0, "alpha_s": 1e-6, "beta_s_per_byte": 1e-10} | level],
    }


def test_files_without_newer_fields_can_be_read() -> None:
    machine = files.from_dict(good())
    assert machine.levels[0].links == 0 and machine.levels[
        0].oversubscription == 1 and machine.device.peak_flops_per_s == 0


@pytest.mark.parametrize(("level", "message"), [
    ({"links": -1}, "'links': expected a number of at least 0, found -1"),
    ({"links": "two"}, "'links': expected a number, found 'two'"),
    ({"links": 2, "oversubscription": 0.5}, "'oversubscription' = 0.5 must be at least 1"),
    ({"oversubscription": 3}, "add links ="),
    ({"link": 2}, "did you mean 'links'"),
    ({"ranks": 2.5}, "expected a whole number, found"),
    ({"small_bytes": 0.5}, "expected a whole number, found"),
])
def test_bad_levels_are_named(level: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as err:
        files.from_dict(good(**level), "file x")
    assert message in str(err.value) and "file x, 'levels', entry 1" in str(err.value)


def test_bad_peak_is_named() -> None:
    bad = good()
    bad["device"]["peak_flops_per_s"] = -1.0
    with pytest.raises(InputError, match="'peak_flops_per_s': expected a number of at least 0"):
        files.from_dict(bad)


def test_the_command_shows_presets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["machines"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in NAMES) and "rack (68, 12.5 GB/s)" in listed
    assert main(["machines", "abci-v100"]) == 0
    shown = capsys.readouterr().out
    for part in ("34 per 68 ranks", "11.3", "40.31 us", "data sheet 15.7 Tflop/s", "sources:",
                 "ParaDL's public tool"):
        assert part in shown
    assert main(["machines", "abci-v100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["levels"][2]["oversubscription"] == 3 and files.from_dict(
        document) == files.load("abci-v100")
    path = str(tmp_path / "m.toml")
    files.save(files.load("local"), path)
    assert main(["machines", path]) == 0
    assert "sources:" not in capsys.readouterr().out

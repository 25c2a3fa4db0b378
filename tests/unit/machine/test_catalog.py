"""The catalog of devices: plausible figures with sources; machine files that name a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.machine import catalog, files
from hpcpar.machine.model import Device

FOLDER = Path(catalog.__file__).parent / "devices"
LEVEL = {"name": "all", "ranks": 0, "alpha_s": 1e-6, "beta_s_per_byte": 1e-10}


def machine(device: Any) -> dict[str, Any]:
    return {"name": "m", "device": device, "levels": [LEVEL]}


@pytest.mark.parametrize("name", catalog.names())
def test_data_sheets_are_plausible_and_name_their_sources(name: str) -> None:
    device = Device(**catalog.figures(name, "here"))  # type: ignore[arg-type]
    assert device.name == name and device.peak_flops_per_s == device.flops_per_s
    clock = device.flops_per_s / (2 * device.multiprocessors * device.lanes)
    assert 0.7e9 < clock < 2.3e9
    assert 6 < device.flops_per_s / device.bandwidth_bytes_per_s < 40  # flops a byte
    assert 4e9 <= device.memory_bytes <= 192e9
    head = (FOLDER / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    assert head[0].startswith("# ") and head[1].startswith("# ") and len(head[1]) > 40


def test_the_page_names_every_device() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "machines.md"
    text = page.read_text(encoding="utf-8")
    assert all(f"{name}," in text or f"{name} (" in text or f"{name}." in text
               for name in catalog.names())


def test_a_device_name_gives_a_data_sheet_that_own_figures_override() -> None:
    named = files.from_dict(machine("A100-SXM-80GB")).device
    own = files.from_dict(machine({"name": "A100-SXM-80GB", "memory": "40 GB"})).device
    assert (named.memory_bytes, named.multiprocessors) == (80e9, 108)
    assert (own.memory_bytes, own.flops_per_s) == (40e9, 19.5e12)


def test_files_keep_the_device(tmp_path: Path) -> None:
    first = files.from_dict(machine({"name": "T4", "software_year": 2019}))
    files.save(first, str(tmp_path / "m.toml"))
    assert files.load(str(tmp_path / "m.toml")) == first


def test_an_unknown_device_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError, match="file x: device 'A100-SXM-80'; did you mean"):
        files.from_dict(machine("A100-SXM-80"), "file x")


def test_a_file_with_all_figures_may_use_any_device_name(tmp_path: Path) -> None:
    """So plan files of other versions read."""
    known = catalog.figures("T4", "here")
    assert files.from_dict(machine({**known, "name": "mine"})).device.name == "mine"


def test_multiprocessors_need_lanes() -> None:
    plain = {"memory_bytes": 1, "flops_per_s": 1.0, "bandwidth_bytes_per_s": 1.0}
    with pytest.raises(InputError, match="'multiprocessors' and 'lanes' belong together"):
        files.from_dict(machine({**plain, "multiprocessors": 80}))

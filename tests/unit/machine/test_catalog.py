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
    assert 0.7e9 < clock < 3e9
    assert 6 < device.flops_per_s / device.bandwidth_bytes_per_s < 110  # flops a byte
    assert 4e9 <= device.memory_bytes <= 384e9
    assert device.vendor in {"NVIDIA", "AMD", "Intel", "Fujitsu"} and device.kind in {"gpu", "cpu"}
    for form, rate in device.rates.items():
        # tensor cores multiply at most 35 times as fast as lanes; a GeForce's sum in float32
        assert (rate <= device.flops_per_s if form == "float64" else rate >= device.flops_per_s)
        assert rate < 35 * device.flops_per_s
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
    with pytest.raises(InputError, match=r"did you mean A100-SXM-80GB\?; else give vendor, kind"):
        files.from_dict(machine("A100-SXM-80"), "file x")


@pytest.mark.parametrize(("name", "hint"), [
    ("RTX 3090", "; did you mean RTX3090?; else"), ("nvidia a40", "; did you mean A40?; else"),
    ("NVIDIA RTX A6000", "; did you mean A6000?; else"), ("---", "lists it); else"),
    ("NVIDIA A100-SXM4-80GB", "; did you mean A100-SXM-80GB?; else"),
    ("h100", "; did you mean H100-NVL or H100-PCIE or H100-SXM?; else"),
    ("L41S", "lists it); else"), ("Gaudi2", "lists it); else"),
])
def test_a_device_that_the_catalog_lacks_is_replaced_by_its_data_sheet(name: str, hint: str
                                                                       ) -> None:
    with pytest.raises(InputError) as caught:
        files.from_dict(machine(name), "machine file m.toml")
    message = str(caught.value)
    assert message.startswith(f"machine file m.toml: device '{name}' is not in the catalog")
    assert hint in message and "unknown" not in message and "\n" not in message
    assert "memory, rate, bandwidth, multiprocessors and lanes of its data sheet" in message


def test_the_lines_that_the_message_asks_for_are_enough() -> None:
    lines = {"vendor": "NVIDIA", "kind": "gpu", "memory": "8 GB", "rate": "4.8 Tflop/s",
             "bandwidth": "160 GB/s", "multiprocessors": 16, "lanes": 128}
    assert tuple(lines) == catalog.SHEET
    own = files.from_dict(machine({"name": "my M60", **lines})).device
    assert (own.name, own.vendor, own.multiprocessors) == ("my M60", "NVIDIA", 16)


def test_a_device_in_place_of_a_machine_is_named() -> None:
    with pytest.raises(InputError, match="'L40S' is a device, not a machine: name it in a machine"):
        files.load("L40S")


@pytest.mark.parametrize("name", ["RTX2080Ti", "RTX3090", "RTX4090", "RTX5090"])
def test_geforce_cards_sum_in_float32_at_half_the_rate(name: str) -> None:
    """512 flops a clock and multiprocessor with sums in float32; 256 in Turing and Ampere."""
    device = catalog.device(name)
    tensor = device.rates["float16"] / device.flops_per_s
    assert tensor == pytest.approx(4.0 if name == "RTX2080Ti" else 2.0, rel=0.02)


def test_a_file_s_kind_comes_from_its_quality_unless_the_device_has_one() -> None:
    sheet = {"memory": "8 GB", "rate": "4.8 Tflop/s", "bandwidth": "160 GB/s",
             "multiprocessors": 16, "lanes": 128}

    def kinds(device: Any, stated: str = "") -> tuple[str, str]:
        made = files.from_dict(machine(device) | {"quality": {"device": stated}})
        return made.device.kind, made.kind

    assert kinds(sheet) == ("", "")
    assert kinds(sheet, "cpu") == ("cpu", "cpu")
    assert kinds({**sheet, "kind": "gpu"}) == ("gpu", "gpu")
    assert kinds("A64FX") == ("cpu", "cpu")
    with pytest.raises(InputError, match="'kind' = 'GPU' of a device must be gpu or cpu"):
        kinds({**sheet, "kind": "GPU"})


def test_a_plan_file_of_an_earlier_version_gets_vendor_and_kind() -> None:
    known = {name: value for name, value in catalog.figures("MI300X", "here").items()
             if name not in {"vendor", "kind"}}
    device = files.from_dict(machine(known)).device
    assert (device.vendor, device.kind) == ("AMD", "gpu")


def test_a_file_with_all_figures_may_use_any_device_name(tmp_path: Path) -> None:
    """So plan files of other versions read."""
    known = catalog.figures("T4", "here")
    assert files.from_dict(machine({**known, "name": "mine"})).device.name == "mine"


def test_multiprocessors_need_lanes() -> None:
    plain = {"memory_bytes": 1, "flops_per_s": 1.0, "bandwidth_bytes_per_s": 1.0}
    with pytest.raises(InputError, match="'multiprocessors' and 'lanes' belong together"):
        files.from_dict(machine({**plain, "multiprocessors": 80}))

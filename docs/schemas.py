"""JSON Schemas of hpcpar's files, from the types that read them.

``python docs/schemas.py`` writes ``docs/reference/schemas/*.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from hpcpar.cli.site import SiteDefaults
from hpcpar.machine import quantities
from hpcpar.machine.model import Machine
from hpcpar.network.network_file import NetworkFile
from hpcpar.network.spec import layer_types
from hpcpar.plan.plan import VERSION, Plan
from hpcpar.prediction.prediction import PredictionFile
from hpcpar.sweep.batch_options import BatchOptions
from hpcpar.sweep.folder import Status
from hpcpar.sweep.study import Study
from hpcpar.train.checkpoint import CheckpointState

FOLDER = Path(__file__).parent / "reference" / "schemas"
#: Name of a schema -> the type that reads the file. Attributes of HDF5 count as a table.
FILES: dict[str, type] = {
    "plan": Plan, "network": NetworkFile, "machine": Machine, "job": BatchOptions,
    "site": SiteDefaults, "study": Study, "status": Status, "prediction": PredictionFile,
    "checkpoint-state": CheckpointState,
}
#: Types that ignore names which they do not know.
OPEN = {"PredictionFile", "PhaseTimes", "StepCost"}


def anything(type: Any) -> dict[str, Any]:
    """The schema of a type that is checked later, or not at all."""
    if type is not object:
        raise NotImplementedError(type)
    return {"description": "any value"}


def with_units(schema: dict[str, Any], names: dict[str, tuple[str, str]]) -> None:
    """Adds the quantities with units that may stand for fields."""
    for name, (field, kind) in names.items():
        schema["properties"][name] = {"type": "string", "description": f"a {kind} with its unit, "
                                                                       f"for {field}"}
        if field in schema["required"]:
            schema["required"].remove(field)


def layers(definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a stored layer; adds those of all types of layers to the definitions."""
    own = {name: kind for name, kind in sorted(layer_types().items()) if "." not in name}
    _, found = msgspec.json.schema_components(
        own.values(), schema_hook=anything, ref_template="#/$defs/{name}")
    for name in own:
        schema = found[name]
        schema["properties"] = {"type": {"const": name}} | schema["properties"]
        schema["required"] = ["type", *schema["required"]]
    definitions |= found
    outside = {"type": "object", "description": "a layer of a user's own, by module and class",
               "properties": {"type": {"type": "string", "pattern": r"\."}},
               "required": ["type", "name"]}
    return {"anyOf": [*({"$ref": f"#/$defs/{name}"} for name in own), outside]}


def without_empty_defaults(schema: Any) -> Any:
    """The schema without defaults of no entries, which not every version of msgspec writes."""
    if isinstance(schema, list):
        return [*map(without_empty_defaults, schema)]
    if not isinstance(schema, dict):
        return schema
    return {key: without_empty_defaults(value) for key, value in schema.items()
            if not (key == "default" and value in ([], {}))}


def schemas() -> dict[str, str]:
    """The text of every schema, by its name; a definition is one line."""
    out = {}
    for name, kind in FILES.items():
        parts = msgspec.json.schema(kind, schema_hook=anything)["$defs"]
        if "NetworkSpec" in parts:
            parts["NetworkSpec"]["properties"]["layers"]["items"] = layers(parts)
        if "Device" in parts:
            with_units(parts["Device"], quantities.DEVICE)
            with_units(parts["Level"], quantities.LEVEL)
            with_units(parts["Host"], quantities.HOST)
        if kind is Machine:
            parts["Machine"]["properties"]["device"] = {"anyOf": [
                {"$ref": "#/$defs/Device"},
                {"type": "string", "description": "a device of the catalog"}]}
        if kind is Plan:
            parts["Plan"]["properties"] |= {"hpcpar_plan": {"const": VERSION}}
            parts["Plan"]["required"] += ["hpcpar_plan"]
        for part in parts.values():
            part.setdefault("additionalProperties", part["title"] in OPEN)
            summary = part.get("description", "").partition("\n\n")[0]
            part["description"] = " ".join(summary.split())
        lines = ",\n".join(f"  {json.dumps(each)}: {json.dumps(without_empty_defaults(part))}"
                           for each, part in parts.items())
        out[name] = (f'{{\n "$schema": "https://json-schema.org/draft/2020-12/schema",\n'
                     f' "$ref": "#/$defs/{kind.__name__}",\n "$defs": {{\n{lines}\n }}\n}}\n')
    return out


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in schemas().items():
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")

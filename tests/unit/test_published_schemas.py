"""The JSON Schemas in the documentation match the types that read the files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from docs.schemas import FILES, FOLDER, schemas
from hpcpar.machine import files
from hpcpar.plan import plan as plans
from hpcpar.prediction.price import price
from tests.unit.played import MACHINE, lenet

PLAN = lenet("data", 2)


def test_published_schemas_are_current() -> None:
    """``python docs/schemas.py`` writes them."""
    written = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert written == schemas()
    page = (FOLDER.parent / "files.md").read_text(encoding="utf-8")
    assert all(f"(schemas/{name}.json)" in page for name in FILES)


@pytest.mark.parametrize(("name", "data"), [
    ("prediction", price(PLAN.network.build(), PLAN, MACHINE).to_json(steps=True)),
    ("plan", plans.to_json(PLAN)), ("machine", files.to_dict(files.load("local"))),
    ("machine", {"name": "m", "device": {"memory": "1 GB"}, "levels": [{"latency": "1 us"}]})])
def test_the_names_in_files_are_those_of_the_schema(name: str, data: dict[str, Any]) -> None:
    schema = json.loads(schemas()[name])

    def check(part: dict[str, Any], value: Any) -> None:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if isinstance(value, dict) and "properties" in part:
            assert value.keys() <= part["properties"].keys()
            for key, each in value.items():
                check(part["properties"][key], each)
        inner = part.get("additionalProperties")
        for each in value.values() if isinstance(value, dict) and isinstance(inner, dict) else ():
            check(inner, each)
        for each in value if isinstance(value, list | tuple) and "items" in part else ():
            check(part["items"], each)

    check(schema, data)

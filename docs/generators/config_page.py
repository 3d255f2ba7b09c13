"""`config.md`: every section and component of the config, from the JSON Schema."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generators.markdown import HEAD, table
from paceline.config.components import COMPONENT_LISTS, ROOMS
from paceline.config.schema import json_schema

INTRODUCTION = """\
A config file is YAML with the sections below. `name`, `model` and `data` are required; everything else has a default.
`paceline schema` prints the same as a JSON Schema, with which editors complete and check a file.
`paceline train CONFIG --dry-run` prints a whole config with all defaults and the numbers that follow from it.

A section that holds a *component* (a model, a data set and so on) chooses it by `name` (shipped with Paceline, or
registered by an installed package) or by `path` (custom code: `module:function`, called with `args`)."""
OVERRIDES = """\
## Overrides

`paceline train CONFIG trainer.epochs=2 optimizer.lr=0.05` changes fields; values are read as YAML.

- `model={name: resnet18, num_classes: 10}` replaces a whole section.
- `optimizer.name=adamw` switches the component. Fields that the new one does not have are dropped, with a warning.
- In Python: `load_config(path, {"trainer.epochs": 2})`.

`extends: base.yaml` in a file does the same for a whole file: see the first field below."""
BATCH = """\
## Batch sizes

`global_batch_size = micro_batch_size x gradient_accumulation_steps x workers`. Any two of the first three fix the
third; with the global size alone, the accumulation is 1.

- A global batch of 256 with two workers is a micro batch of 128.
- A global batch of 256 with a micro batch of 32 and two workers is an accumulation of 4.
- Numbers that do not divide are an error that names the nearest ones that do.
- `data.micro_batch_size: max` finds the largest micro batch that fits on every worker by trial steps before training.
  The accumulation follows, and the global batch stays."""
BY_PATH = "path"
SHOWN_NAMES = 12
"""A component with more names lists them apart."""


def page() -> str:
    """Return the whole page."""
    schema = json_schema()
    definitions = schema["$defs"]
    lines = ["# Config", "", HEAD, "", INTRODUCTION, "", OVERRIDES, "", BATCH, "", "## Top level", ""]
    lines += _fields(schema["properties"], definitions, ("name",))
    for section, field in schema["properties"].items():
        lines += _section(section, field, definitions)
    return "\n".join([*lines, ""])


def _section(section: str, field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    references = [_name_of(each) for each in _references(field)]
    if not references:
        return
    yield from ["", f"## {section}"]
    if len(references) > 1 or not _contains(definitions[references[0]]["description"], field["description"]):
        yield from ["", field["description"]]
    if section in ROOMS and section != "metrics":
        kind = "a list of" if section in COMPONENT_LISTS else "one of"
        yield from ["", f"The section is {kind} the following components."]
    for name in sorted(references, key=lambda each: (_is_by_path(definitions[each]), each.lower())):
        definition = definitions[name]
        if len(references) > 1:
            yield from ["", f"### {section}: {_title(definition)}"]
        yield from ["", definition["description"], *_names(definition), ""]
        yield from _fields(definition["properties"], definitions, definition.get("required", ()))
        yield from _parts(definition, definitions)


def _contains(text: str, sentence: str) -> bool:
    return sentence.removesuffix(".").lower() in text.lower()


def _parts(definition: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    """The mappings that a section's fields hold, such as `optimizer.param_groups`."""
    for field, schema in definition["properties"].items():
        for reference in dict.fromkeys(_references(schema)):
            part = definitions[_name_of(reference)]
            yield from ["", f"Fields of `{field}`: {part['description']}", ""]
            yield from _fields(part["properties"], definitions, part.get("required", ()))


def _is_by_path(definition: Mapping[str, Any]) -> bool:
    return BY_PATH in definition.get("required", ())


def _title(definition: Mapping[str, Any]) -> str:
    if _is_by_path(definition):
        return "custom code by path"
    names = _name_values(definition)
    return ", ".join(names) if len(names) <= SHOWN_NAMES else f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _name_values(definition: Mapping[str, Any]) -> list[str]:
    name = definition["properties"]["name"]
    return [name["const"]] if "const" in name else list(name["enum"])


def _names(definition: Mapping[str, Any]) -> Iterator[str]:
    names = [] if _is_by_path(definition) else definition["properties"].get("name", {}).get("enum", [])
    if len(names) > SHOWN_NAMES:
        yield from ["", "Names: " + ", ".join(f"`{name}`" for name in names) + "."]


def _fields(fields: Mapping[str, Any], definitions: Mapping[str, Any], required: Sequence[str]) -> list[str]:
    rows = [
        [f"`{name}`", _type(field), _default(name, field, required), _one_line(field["description"])]
        for name, field in fields.items()
    ]
    return table(["field", "type", "default", "meaning"], rows)


def _one_line(text: str) -> str:
    return text.replace("\n\n", "<br>")


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return "mapping"
    if "const" in schema:
        return f"`{_text(schema['const'])}`"
    if "enum" in schema:
        values = schema["enum"]
        return (
            "one of the names above" if len(values) > SHOWN_NAMES else ", ".join(f"`{_text(each)}`" for each in values)
        )
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[key]))
    if schema.get("type") == "array":
        inner = schema.get("items") or {}
        return f"list of {_type(inner)}" if inner else "list"
    names = {"object": "mapping", "string": "text", "null": "`null`", "boolean": "`true`, `false`"}
    return names.get(schema.get("type", ""), schema.get("type", "any value"))


def _default(name: str, field: Mapping[str, Any], required: Sequence[str]) -> str:
    if name in required:
        return "required"
    if "default" not in field or (isinstance(field["default"], dict) and field["default"]):
        return ""
    return f"`{_text(field['default'])}`"


def _text(value: Any) -> str:
    """Return a value as YAML has it."""
    return value if isinstance(value, str) else json.dumps(value)


def _references(schema: Any) -> Iterator[str]:
    """Return the definitions that a field's schema refers to."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for key, value in schema.items():
            if key != "default":
                yield from _references(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _name_of(reference: str) -> str:
    return re.sub(r"^.*/", "", reference)

"""The JSON Schema of the config file, for editors: completion, documentation and errors while typing."""

from collections.abc import Iterator
from typing import Any

from paceline.config.base import Section
from paceline.config.documentation import documentation
from paceline.config.experiment import ExperimentConfig
from paceline.config.extending import EXTENDS

EXTENDS_TEXT = (
    "Path of another config file, relative to this one, whose values this file changes. Mappings are merged key by "
    "key, everything else is replaced."
)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of an experiment file; every field has its documentation as description."""
    schema = ExperimentConfig.model_json_schema(mode="validation")
    del schema["title"]
    _drop_titles(schema)
    _document(schema, ExperimentConfig)
    classes = {cls.__name__: cls for cls in _subclasses(Section)}
    for name, definition in schema["$defs"].items():
        _document(definition, classes[name])
    extends = {"type": "string", "description": EXTENDS_TEXT}
    schema["properties"] = {EXTENDS: extends, **schema["properties"]}
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": [EXTENDS]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Paceline experiment",
        **schema,
    }


def _drop_titles(schema: Any) -> None:
    """Remove the titles that pydantic makes of field names: editors show them in place of the name itself."""
    if isinstance(schema, list):
        for item in schema:
            _drop_titles(item)
    elif isinstance(schema, dict):
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
        for key, value in schema.items():
            if key not in ("default", "const", "enum", "examples"):
                _drop_titles(value)


def _document(schema: dict[str, Any], cls: type[Section]) -> None:
    texts = documentation(cls)
    for name, field in schema["properties"].items():
        field["description"] = texts.get(name) or f"Selects this component of {getattr(cls, 'package', '')}."


def _subclasses(cls: type[Section]) -> Iterator[type[Section]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)

"""The JSON Schema of the config file, for editors: completion, documentation and errors while typing."""

from typing import Any

from paceline.config.experiment import ExperimentConfig


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of an experiment file; every field has its documentation as description."""
    schema = ExperimentConfig.model_json_schema(mode="validation")
    del schema["title"]
    _drop_titles(schema)
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

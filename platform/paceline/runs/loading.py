"""Lines of Python that read an export again: it has no `MLmodel`, which MLflow's own loaders need."""

from collections.abc import Sequence

NOT_BY_MLFLOW = "`mlflow.pytorch.load_model` does not open it: it holds plain files, no MLmodel"


def loading_lines(format: str, file: str, registered: tuple[str, int] | None, folder: str) -> tuple[str, ...]:
    """Two lines that read the weights, or the program, once their modules are imported.

    Args:
        format: of the export.
        file: name of the file with the weights, or with the program.
        registered: name and version in MLflow's registry, which it is downloaded from; None: it is read from `folder`.
    """
    if registered is None:
        where = f"folder = {folder!r}"
    else:
        name, version = registered
        where = f"folder = mlflow.artifacts.download_artifacts({f'models:/{name}/{version}'!r})"
    return where, _reading(format, file)


def _reading(format: str, file: str) -> str:
    place = f'f"{{folder}}/{file}"'
    if format == "pt2":
        return f"model = torch.export.load({place}).module()"
    return f"weights = safetensors.torch.load_file({place})"


def version_text(about: str, lines: Sequence[str]) -> str:
    """Markdown for a version in MLflow's registry."""
    code = "\n".join(f"    {line}" for line in lines)
    return f"Exported by Paceline from the {about}. {NOT_BY_MLFLOW}. These lines do:\n\n{code}\n"


def readme(format: str, file: str, run: str, about: str, needs_model: bool = False) -> str:
    """Return the README beside the files of an export.

    Args:
        run: folder or address of the run.
        about: title, such as the run's name and the step.
        needs_model: the run was given its model as a Python object, which has to be given again.
    """
    if format == "pt2":
        what = "the traced model, which does without its code"
        how = f'import torch\n\nfolder = "."  # this one\nmodel = torch.export.load(f"{{folder}}/{file}").module()'
    else:
        what = "the weights"
        given = ", model=MODEL" if needs_model else ""
        how = (
            'import safetensors.torch\n\nfolder = "."  # this one\n'
            f'weights = safetensors.torch.load_file(f"{{folder}}/{file}")\n'
            "# then: model.load_state_dict(weights), with the model that your code builds\n"
            "```\n\nWhere the run is at hand, Paceline builds the model with these weights:\n\n"
            f"```python\nfrom paceline import load_run\n\nmodel = load_run({run!r}).load_model(folder{given})"
        )
    return f"""# {about}

- `{file}`: {what}
- `config.yaml`: the config that it was trained with
- `export.json`: where it comes from, its metrics, hashes and versions

Read it with

```python
{how}
```

{NOT_BY_MLFLOW}. From MLflow's registry the files are brought by
`mlflow.artifacts.download_artifacts("models:/NAME/VERSION")`.
"""

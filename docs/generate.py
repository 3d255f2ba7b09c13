"""Write the pages of `docs/reference` from the code: `uv run python docs/generate.py`."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from generators import cli_page, config_page, errors_page, metrics_page, python_page, table_pages  # noqa: E402

PAGES = {
    "cli.md": cli_page.page,
    "config.md": config_page.page,
    "python.md": python_page.page,
    "metrics.md": metrics_page.page,
    "errors.md": errors_page.page,
    "exit_codes.md": table_pages.exit_codes,
    "environment.md": table_pages.environment,
    "run_folder.md": table_pages.run_folder,
}
"""File below `docs/reference`, and the function that makes its text."""


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (DOCS / "reference" / name).write_text(page())


if __name__ == "__main__":
    main()

"""The folder of the templates of pages without a source: explorers' pages and the results of the search."""

from pathlib import Path


def add_templates(app, config) -> None:
    """Let Sphinx find the templates."""
    config.templates_path = [*config.templates_path, str(Path(__file__).parent / "templates")]


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("config-inited", add_templates)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Build a single page, for ``make page`` (``tools/build_page.py``)."""


def read_only_that_page(app, env, docnames) -> None:
    """Restrict the pages that Sphinx reads to the one in the setting ``one_page``, even if others have changed."""
    if app.config.one_page:
        docnames[:] = [app.config.one_page]


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_config_value("one_page", "", "")
    app.connect("env-before-read-docs", read_only_that_page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Make one page alone: what ``make page`` asks for (``tools/build_page.py``)."""


def read_it_alone(app, env, docnames) -> None:
    """Read no other page, though others may have changed too."""
    if app.config.one_page:
        docnames[:] = [app.config.one_page]


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_config_value("one_page", "", "")
    app.connect("env-before-read-docs", read_it_alone, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

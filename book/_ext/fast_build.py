"""Settings that make the build of the book faster and leave the site as it is."""

import gc

MENU_DEPTH = 2  # chapters, and their exercises


def collect_rarely() -> None:
    """Let Python search for garbage rarely.

    What a build creates, the documents' nodes, is used until its end. With Python's settings a fifth of the build was
    spent on searching these nodes again and again.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def limit_menu(app, config) -> None:
    """Limit the depth of the menu that Sphinx makes for every page: it would copy all headings and drop them later."""
    config.html_theme_options = {**config.html_theme_options, "max_navbar_depth": MENU_DEPTH}


def setup(app) -> dict:
    """Register with Sphinx."""
    collect_rarely()
    app.connect("config-inited", limit_menu)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Set the light or dark theme before a page is drawn.

Until the theme's last script has run, it has no colours for a reader who has not chosen a theme: borders in its colours
appear late and move the text beside them, and in the dark theme the page is white first.
"""

SCRIPT = """(({ dataset }) => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  if (dataset.mode !== "light" && dataset.mode !== "dark") dataset.theme = dark ? "dark" : "light";
})(document.documentElement);"""


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_js_file(None, body=SCRIPT, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

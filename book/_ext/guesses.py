"""Add the script, the style and the switch *Guess first / Just read* to the pages that ask a question."""

from html import escape

from catalogs import gettext

SWITCH = (
    '<div class="g-mode" role="radiogroup" aria-label="{about}">'
    '<label><input type="radio" name="g-mode" value="guess"><span>{guess}</span></label>'
    '<label><input type="radio" name="g-mode" value="read"><span>{read}</span></label></div>'
)


def switch() -> str:
    """Return the switch in the language of this build."""
    about, guess, read = (
        gettext("Answers to the guesses on this page"),
        gettext("Guess first"),
        gettext("Just read"),
    )
    return SWITCH.format(about=escape(about), guess=escape(guess), read=escape(read))


def equip(app, pagename, templatename, context, doctree) -> None:
    """Add ``guesses.js``, which hides answers and stores guesses, its style and the switch to a page with a guess."""
    body = context.get("body") or ""
    if 'class="guess"' in body:
        context["body"] = body.replace("</h1>", f"</h1>\n{switch()}", 1)
        app.add_js_file("guesses.js", loading_method=None)  # at once: what it hides must not show before
        app.add_css_file("guesses.css")


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("html-page-context", equip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""The addresses of the repository and of the published pages.

While the repository's address is still the placeholder, buttons that need it are hidden.
"""

PLACEHOLDER = "/OWNER/"


def configure_addresses(app, config) -> None:
    """Remove the launch, repository and issue buttons from the theme while the address is the placeholder.

    Otherwise set ``html_baseurl``, which is used for canonical links and by ``opengraph.py``.
    """
    options = config.html_theme_options
    if PLACEHOLDER in options.get("repository_url", ""):
        buttons = {"launch_buttons": {}, "use_repository_button": False, "use_issues_button": False}
        config.html_theme_options = {**options, **buttons}
    elif options.get("repository_url") and not config.html_baseurl:
        config.html_baseurl = pages_address(options)


def pages_address(options: dict) -> str:
    """Return the default address of the repository's GitHub Pages."""
    owner, name = options["repository_url"].rstrip("/").split("/")[-2:]
    host = f"{owner.lower()}.github.io"
    return f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("config-inited", configure_addresses)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

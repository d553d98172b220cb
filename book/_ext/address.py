"""The repository's address, and that of the published pages.

As long as the repository has no address of its own, nothing is shown that would lead to one.
"""

PLACEHOLDER = "/OWNER/"


def hide_what_leads_nowhere(app, config) -> None:
    """Take launch, repository and issue buttons out of the theme while the address is a placeholder.

    Otherwise the pages know where they are published, for canonical links and for ``sharing.py``.
    """
    options = config.html_theme_options
    if PLACEHOLDER in options.get("repository_url", ""):
        buttons = {"launch_buttons": {}, "use_repository_button": False, "use_issues_button": False}
        config.html_theme_options = {**options, **buttons}
    elif options.get("repository_url") and not config.html_baseurl:
        config.html_baseurl = pages_address(options)


def pages_address(options: dict) -> str:
    """Where GitHub publishes the pages of a repository that has not said otherwise."""
    owner, name = options["repository_url"].rstrip("/").split("/")[-2:]
    host = f"{owner.lower()}.github.io"
    return f"https://{host}/" if name.lower() == host else f"https://{host}/{name}/"


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("config-inited", hide_what_leads_nowhere)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

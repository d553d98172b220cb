"""As long as the repository has no address of its own, show no button that would lead to one."""

PLACEHOLDER = "/OWNER/"


def hide_buttons_that_lead_nowhere(app, config) -> None:
    """Take the launch, repository and issue buttons out of the theme's options while the address is a placeholder."""
    options = config.html_theme_options
    if PLACEHOLDER in options.get("repository_url", ""):
        buttons = {"launch_buttons": {}, "use_repository_button": False, "use_issues_button": False}
        config.html_theme_options = {**options, **buttons}


def setup(app) -> dict:
    """Register with Sphinx."""
    app.connect("config-inited", hide_buttons_that_lead_nowhere)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

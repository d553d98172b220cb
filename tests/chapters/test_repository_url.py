"""While the repository's address is the placeholder, the build reports it and pages have no launch buttons."""

import re
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

pytest.importorskip("jupyter_book")

from build_book import ROOT, placeholder_notice
from sample_book import sphinx_app

# In two pieces, so that ``make repository`` does not replace the address here.
PLACEHOLDER, OWN = "https://github.com/" + "OWNER/attention-book", "https://github.com/someone/a-fork"


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Build one notebook's page with the book's settings and a given address."""

    def built(address: str) -> str:
        source, target = tmp_path / "source", tmp_path / address.rsplit("/", 1)[1]
        source.mkdir(exist_ok=True)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A page")])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, source / "index.ipynb")
        settings = yaml.safe_load((ROOT / "_config.yml").read_text())
        assert settings["sphinx"]["local_extensions"]["repository_url"] == "book/_ext"
        branch = settings["repository"]["branch"]
        chosen = {"repository_url": address, "repository_branch": branch, "launch_buttons": settings["launch_buttons"]}
        chosen |= {name: settings["html"][name] for name in ("use_repository_button", "use_issues_button")}
        options = {"extensions": ["myst_nb", "sphinx_book_theme", "repository_url"], "html_theme": "sphinx_book_theme"}
        options |= {"html_theme_options": chosen, "nb_execution_mode": "off"}
        sphinx_app(source, target, options).build()
        return (target / "index.html").read_text()

    monkeypatch.syspath_prepend(ROOT / "book/_ext")
    yield built
    sys.modules.pop("repository_url", None)


def buttons(page: str) -> set[str]:
    return set(
        re.findall(r'href="https://(colab\.research\.google\.com|mybinder\.org|github\.com/\w+/[\w-]+)[/"]', page)
    )


@pytest.mark.filterwarnings("ignore")
def test_buttons_are_hidden_while_the_address_is_the_placeholder(page):
    assert buttons(page(PLACEHOLDER)) == set()
    assert buttons(page(OWN)) == {"colab.research.google.com", "mybinder.org", "github.com/someone/a-fork"}


@pytest.mark.filterwarnings("ignore")
def test_launch_buttons_link_to_the_runnable_edition(page):
    launched = re.findall(r'href="https://(?:colab\.research\.google\.com|mybinder\.org)([^"]+)"', page(OWN))
    assert sorted(launched) == [
        "/github/someone/a-fork/blob/notebooks/index.ipynb",
        "/v2/gh/someone/a-fork/notebooks?urlpath=lab/tree/index.ipynb",
    ]


@pytest.mark.parametrize(("address", "lines"), [(PLACEHOLDER, 1), (OWN, 0)])
def test_placeholder_notice_has_one_line_with_the_address(tmp_path: Path, address, lines):
    (tmp_path / "_config.yml").write_text(f"repository:\n  url: {address}\n")
    said = placeholder_notice(tmp_path)
    assert len(said.splitlines()) == lines
    assert not said or (address in said and "make repository URL=" in said)

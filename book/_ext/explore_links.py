"""Links in the text that set an explorer of the page: ``[causal](<#explore=masks&parts=["causal"]>)``.

The part after ``#`` is the address that the explorer itself writes (``book/_static/book.js``). Its values may be in
plain JSON; the page has them encoded. Without scripts, and in the runnable edition, such a link is plain text.
"""

import re
from urllib.parse import parse_qsl, urlencode

from docutils import nodes
from sphinx.transforms import SphinxTransform

PREFIX = "#explore="
# In Markdown: the words of such a link, and its address.
LINK = re.compile(r"(?<!!)\[(?P<words>[^\[\]]+)\]\((?:<(?P<quoted>#explore=[^<>]+)>|(?P<plain>#explore=[^()\s]+))\)")


class EncodeAddresses(SphinxTransform):
    """Encode the addresses that set explorers, before MyST looks for headings with these names."""

    default_priority = 870  # that of MyST's ResolveAnchorIds is 879

    def apply(self, **_) -> None:
        """Turn each link into a reference with a finished address."""
        for link in self.document.findall(nodes.reference):
            if link.get("id_link") and link["refuri"].startswith(PREFIX):
                del link["id_link"]
                link["refuri"] = encoded(link["refuri"])
                link["internal"] = True
                link["classes"].append("sets-explorer")


def encoded(address: str) -> str:
    """Return an address as an explorer writes it.

    >>> encoded('#explore=masks&parts=["causal"]')
    '#explore=masks&parts=%5B%22causal%22%5D'
    """
    return f"#{urlencode(parse_qsl(address[1:], keep_blank_values=True))}"


def without_links(markdown: str) -> str:
    """Return Markdown in which such links are replaced by their words."""
    return LINK.sub(lambda found: found["words"], markdown)


def setup(app) -> dict:
    """Register with Sphinx."""
    app.add_transform(EncodeAddresses)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

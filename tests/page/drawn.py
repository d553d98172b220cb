"""What a drawing shows, for its tests."""

import re

from lessons_lib.page.sketch import Sketch


def words(drawing: Sketch) -> list[str]:
    """Return the texts of a drawing."""
    return [re.sub(r"<[^>]*>", "", text) for text in re.findall(r"<text.*?</text>", drawing.to_html())]

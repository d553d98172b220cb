"""What every explorer is: a widget where there is a kernel, and the same figure, live, where there is none.

A live notebook shows the widget, whose traits follow the reader's hand and can be observed and linked. A rendered
page shows the HTML that is stored beside it, which needs no kernel and no network. Both run the same JavaScript.
"""

import inspect
from typing import Any, ClassVar

import anywidget
import traitlets

from lessons_lib.widgets.assemble import STATIC, classic_script, es_module, read


class Explorer(anywidget.AnyWidget):
    """A figure that the reader can move; a subclass names its script, its traits, and its still picture.

    ``script`` stands for the file ``static/SCRIPT.js``, ``sentence`` says what the live figure does, and the
    constructor lists what a reader may begin with. Traits tagged ``sync=True`` have the same names, values and
    meanings in Python and in JavaScript.

    Raises:
        ValueError: from the constructor, if a value breaks the rule of its trait. Assigning such a value later raises
            ``traitlets.TraitError``, as in every widget, and the old value stays.
    """

    script: ClassVar[str]
    sentence: ClassVar[str]

    _esm = traitlets.Unicode().tag(sync=True)
    _css = STATIC / "explorer.css"

    def __init__(self, **traits: Any) -> None:
        try:
            super().__init__(**traits)
        except traitlets.TraitError as error:
            raise ValueError(str(error)) from error

    @traitlets.default("_esm")
    def _assemble(self) -> str:
        return es_module(self.script)

    def still(self) -> str:
        """Draw the present state as an SVG picture that needs no script."""
        raise NotImplementedError

    def to_html(self) -> str:
        """Return a piece of HTML that is live in any page, and a picture with a sentence where scripts are off."""
        return (
            f'<div class="explorer"><style>{read("explorer.css")}</style>'
            f'<div class="x-still">{self.still()}<p>{self.sentence}</p></div>'
            f"<script>{classic_script(self.script, self._state())}</script></div>"
        )

    def _state(self) -> dict[str, Any]:
        names = sorted(set(self.trait_names(sync=True)) - set(Explorer.class_trait_names()))
        return {name: getattr(self, name) for name in names if not name.startswith("_")}

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, "text/html": self.to_html()}, metadata

    def __repr__(self) -> str:
        given = {name: getattr(self, name) for name in inspect.signature(self.__init__).parameters}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value not in (None, []))
        return f"{type(self).__name__}({arguments})"

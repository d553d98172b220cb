"""The base class of the explorers: a widget in a live notebook, and the same live figure on a page without a kernel.

A live notebook shows the widget, whose traits follow the reader's input and can be observed and linked. A rendered page
shows the HTML that is stored beside the widget, which needs no kernel and no network. Both run the same JavaScript.
"""

import inspect
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, ClassVar
from urllib.parse import urlencode

import anywidget
import traitlets

from lessons_lib.page.widgets.assemble import es_module, in_page, made_from, page_scripts, style_element, style_sheets
from lessons_lib.page.widgets.words import say, translated_texts, with_words


@dataclass(frozen=True)
class Card:
    """The texts of an explorer's card, in English; ``make catalogs`` finds them, and the explorer translates them.

    ``tries`` holds the *Try* links: what a link shows, in a few words, and the values that it gives to traits. The
    other traits get their first values again, except ``guess``, the reader's answer to a question.
    """

    title: str
    question: str  # one line; the figure answers it
    sentence: str  # what the live figure does, shown where scripts are off
    tries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Explorer(anywidget.AnyWidget):
    """An interactive figure. A subclass defines its script, its card, its traits and its still picture.

    ``script`` names the file ``static/SCRIPT.js`` and, if it exists, ``static/SCRIPT.css``. Traits tagged ``sync=True``
    have the same names, values and meanings in Python and in JavaScript. The constructor takes them in the order in
    which the class lists them; traits tagged ``required=True`` have no default.

    Raises:
        TypeError: from the constructor, for an unknown argument or a missing required trait.
        ValueError: from the constructor, if a value breaks the rule of its trait. Assigning such a value later raises
            ``traitlets.TraitError``, as in every widget, and the old value stays.
    """

    script: ClassVar[str]
    card: ClassVar[Card]

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    _card = traitlets.Dict().tag(sync=True)
    _words = traitlets.Dict().tag(sync=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__signature__ = inspect.Signature([_parameter(name, trait) for name, trait in _synced(cls).items()])

    def __init__(self, *values: Any, **traits: Any) -> None:
        synced = _synced(type(self))
        try:
            given = inspect.signature(type(self)).bind(*values, **traits)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__} {error}; it takes {', '.join(synced) or 'nothing'}") from None
        given.apply_defaults()
        try:
            super().__init__(**{name: _as_lists(value) for name, value in given.arguments.items()})
        except traitlets.TraitError as error:
            raise ValueError(str(error)) from error

    @traitlets.default("_esm")
    def _assemble(self) -> str:
        return es_module(self.script)

    @traitlets.default("_css")
    def _styles(self) -> str:
        return "\n".join(style_sheets(self.script).values())

    @traitlets.default("_card")
    def _card_texts(self) -> dict[str, Any]:
        texts = {"name": self.script, "title": say(self.card.title), "question": say(self.card.question)}
        tries = [[say(words), self.address(values), values] for words, values in self.try_links().items()]
        return {**texts, "tries": tries}

    @traitlets.default("_words")
    def _table(self) -> dict[str, str]:
        return translated_texts(self.script)

    def try_links(self) -> dict[str, dict[str, Any]]:
        """Return the values of each *Try* link that fits this explorer's data, such as its number of keys."""
        return {words: dict(values) for words, values in self.card.tries.items() if not self.refused(values)}

    def refused(self, values: Mapping[str, Any]) -> str:
        """Return why an explorer with this one's other values may not have these values, or an empty text."""
        unknown = [name for name in values if name not in _synced(type(self))]
        if unknown:
            return f"{type(self).__name__} has no trait {unknown[0]}"
        tried = type(self).__new__(type(self))  # with traits, but without the connection of a widget to its notebook
        try:
            with tried.hold_trait_notifications():
                for name, value in {**self._state(), **values}.items():
                    setattr(tried, name, _as_lists(value))
        except traitlets.TraitError as error:
            return str(error)
        return ""

    def address(self, values: Mapping[str, Any]) -> str:
        """Return the address that sets the first explorer of this kind on a page, ``#explore=walk&layers=3``."""
        return f"#{urlencode({'explore': self.script, **{name: _in_address(values[name]) for name in values}})}"

    def still(self) -> str:
        """Draw the current state as an SVG picture that needs no script."""
        raise NotImplementedError

    def to_html(self) -> str:
        """Return HTML that is live in any page, and shows a picture and a sentence where scripts are off.

        The styles, and all scripts but the last, are marked ``data-part`` with a key: a page with several explorers
        needs one of each.
        """
        rules = {name: _rule(trait) for name, trait in _synced(type(self)).items()}
        state = {**self._state(), "_card": self._card, **with_words(self._words)}
        scripts = page_scripts(self.script, state, rules)
        styles = "".join(style_element(name, style) for name, style in style_sheets(self.script).items())
        title, question, sentence = (
            escape(say(getattr(self.card, field))) for field in ("title", "question", "sentence")
        )
        head = f'<p class="x-title">{title}</p><p class="x-question">{question}</p>'
        return in_page(f"explorer x-{self.script}", styles, f"{head}{self.still()}<p>{sentence}</p>", scripts)

    def _state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in sorted(_synced(type(self)))}

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, "text/html": self.to_html()}, {**metadata, **made_from(type(self), self._state())}

    def __repr__(self) -> str:
        given = {name: getattr(self, name) for name in _synced(type(self))}
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items() if value not in (None, []))
        return f"{type(self).__name__}({arguments})"


_KINDS: dict[type[traitlets.TraitType], type] = {
    traitlets.Float: float,
    traitlets.Int: int,
    traitlets.Bool: bool,
    traitlets.Unicode: str,
    traitlets.List: list,
}


def _synced(cls: type[Explorer]) -> dict[str, traitlets.TraitType]:
    """Return the traits that Python and the script share, in the order in which the class lists them."""
    own = [vars(base) for base in reversed(cls.__mro__) if issubclass(base, Explorer) and base is not Explorer]
    members = {name: member for attributes in own for name, member in attributes.items()}
    return {
        name: trait
        for name, trait in members.items()
        if isinstance(trait, traitlets.TraitType) and trait.metadata.get("sync") and not name.startswith("_")
    }


def _parameter(name: str, trait: traitlets.TraitType) -> inspect.Parameter:
    kinds = [kind for base, kind in _KINDS.items() if isinstance(trait, base)]
    default = inspect.Parameter.empty if trait.metadata.get("required") else trait.default()
    annotation = kinds[0] if kinds else type(default)
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=default,
        annotation=annotation | None if trait.allow_none else annotation,
    )


def _rule(trait: traitlets.TraitType | None) -> Any:
    """Return the rule by which a page checks a value from its address; the trait itself may be stricter."""
    if isinstance(trait, traitlets.Float | traitlets.Int):
        bounds = [None if x is None or math.isinf(x) else x for x in (trait.min, trait.max)]
        return [*bounds, isinstance(trait, traitlets.Int)]
    if isinstance(trait, traitlets.Enum):
        return {"options": list(trait.values or ())}
    if isinstance(trait, traitlets.List):
        return {"each": _rule(trait._trait), "least": trait._minlen, "most": min(trait._maxlen, 1024)}
    return {traitlets.Bool: "boolean", traitlets.Unicode: "string"}.get(type(trait))


def _in_address(value: Any) -> str:
    """Return a value as an address holds it: a text as it is, any other value in JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _as_lists(value: Any) -> Any:
    """Convert sequences and tensors to new lists, the values that a trait holds."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_as_lists(one) for one in value]
    return value

"""Figures that the reader can move, in a notebook and in a page without one.

Each explorer is a file here and two scripts in ``static/``: ``NAME.js`` draws what ``NAME.math.js`` computes. The
files, in reading order::

    traits       numbers with bounds
    arithmetic   random numbers, the same in both languages
    drawing      still pictures, as SVG
    assemble     one script in two forms
    explorer     what every explorer is
    trained      models that a script carries, and their heads switched off
    retrieval    a look-up by vectors
    temperature  softmax between the best score and no preference
    plane        lengths and angles of keys and query
    scaling      what the width of a head does
    walk         where an output's content comes from
    masks        who may look at whom
    heads        what trained heads look at
    hero         the same heads, as arcs over a sentence
    clocks       rotary positions
    collapse     what depth does to tokens
    budget       where the weights of a GPT are
    cost         what a model waits for when it reads and writes
    tiles        FlashAttention's forward pass
    gpt          a language model and the grammar that it learned
    birth        an induction head at twenty steps of its training
    reader       what heads look at before a verb, and which its number needs
    routing      which experts the words of a story are sent to
    pairs        ways to compute fewer pairs, on a trained head
    stretch      rotary positions beyond the length in training
    patches      a digit cut into patches, and what looks at what
    graph        whom the nodes of a graph attend to
"""

from lessons_lib.widgets.birth import BirthExplorer
from lessons_lib.widgets.budget import BudgetExplorer
from lessons_lib.widgets.clocks import ClocksExplorer
from lessons_lib.widgets.collapse import CollapseExplorer
from lessons_lib.widgets.cost import CostExplorer
from lessons_lib.widgets.gpt import GPTExplorer
from lessons_lib.widgets.graph import GraphExplorer
from lessons_lib.widgets.heads import HeadsExplorer
from lessons_lib.widgets.hero import Hero
from lessons_lib.widgets.masks import MasksExplorer
from lessons_lib.widgets.pairs import PairsExplorer
from lessons_lib.widgets.patches import PatchesExplorer
from lessons_lib.widgets.plane import PlaneExplorer
from lessons_lib.widgets.reader import PatternExplorer
from lessons_lib.widgets.retrieval import RetrievalExplorer
from lessons_lib.widgets.routing import RoutingExplorer
from lessons_lib.widgets.scaling import ScalingExplorer
from lessons_lib.widgets.stretch import StretchExplorer
from lessons_lib.widgets.temperature import TemperatureExplorer
from lessons_lib.widgets.tiles import TilesExplorer
from lessons_lib.widgets.walk import WalkExplorer

__all__ = [
    "BirthExplorer",
    "BudgetExplorer",
    "ClocksExplorer",
    "CollapseExplorer",
    "CostExplorer",
    "GPTExplorer",
    "GraphExplorer",
    "HeadsExplorer",
    "Hero",
    "MasksExplorer",
    "PairsExplorer",
    "PatchesExplorer",
    "PatternExplorer",
    "PlaneExplorer",
    "RetrievalExplorer",
    "RoutingExplorer",
    "ScalingExplorer",
    "StretchExplorer",
    "TemperatureExplorer",
    "TilesExplorer",
    "WalkExplorer",
]

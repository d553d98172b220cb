"""The explorers: interactive figures for notebooks, and for pages without a kernel.

An explorer is a class in a file of this folder and two scripts in ``static/``: ``NAME.math.js`` computes, and
``NAME.js`` draws. The files, in reading order::

    traits       traits for numbers with bounds
    arithmetic   random numbers, the same in Python and JavaScript
    drawing      still pictures as SVG
    assemble     bundling of the scripts, for notebooks and for pages
    words        texts of the scripts, and their table in another language
    explorer     the base class
    trained      trained models stored in scripts, and ablation of their heads
    steps        one row of attention, step by step
    retrieval    attention as a look-up in a table of keys and values
    temperature  softmax at low and high temperature
    plane        lengths and angles of query and keys
    scaling      the width of a head, the scores and the gradient
    walk         attention layers as a Markov chain
    masks        attention masks and their composition
    heads        attention weights of eight trained heads
    hero         the weights of these heads as arcs over a sentence
    clocks       rotary position embeddings
    collapse     rank collapse of tokens with depth
    budget       parameters of a GPT by part
    cost         arithmetic and memory time of inference
    tiles        FlashAttention's forward pass
    gpt          two language models, and the grammar of the stories
    birth        an induction head at twenty steps of its training
    reader       attention patterns before a verb, and ablation of heads
    routing      routing of words to experts
    reach        reach of sparse attention patterns over several layers
    pairs        efficient attention on a trained head
    recall       recorded recall of pairs by layers with a small state
    stretch      rotary embeddings beyond the training length
    patches      Vision Transformers on digits
    graph        graph attention and label propagation
    merges       byte-pair encoding of a text
"""

from lessons_lib.page.widgets.birth import BirthExplorer
from lessons_lib.page.widgets.budget import BudgetExplorer
from lessons_lib.page.widgets.clocks import ClocksExplorer
from lessons_lib.page.widgets.collapse import CollapseExplorer
from lessons_lib.page.widgets.cost import CostExplorer
from lessons_lib.page.widgets.gpt import GPTExplorer
from lessons_lib.page.widgets.graph import GraphExplorer
from lessons_lib.page.widgets.heads import HeadsExplorer
from lessons_lib.page.widgets.hero import Hero
from lessons_lib.page.widgets.masks import MasksExplorer
from lessons_lib.page.widgets.merges import MergesExplorer
from lessons_lib.page.widgets.pairs import PairsExplorer
from lessons_lib.page.widgets.patches import PatchesExplorer
from lessons_lib.page.widgets.plane import PlaneExplorer
from lessons_lib.page.widgets.reach import ReachExplorer
from lessons_lib.page.widgets.reader import PatternExplorer
from lessons_lib.page.widgets.recall import RecallExplorer
from lessons_lib.page.widgets.retrieval import RetrievalExplorer
from lessons_lib.page.widgets.routing import RoutingExplorer
from lessons_lib.page.widgets.scaling import ScalingExplorer
from lessons_lib.page.widgets.steps import StepsExplorer
from lessons_lib.page.widgets.stretch import StretchExplorer
from lessons_lib.page.widgets.temperature import TemperatureExplorer
from lessons_lib.page.widgets.tiles import TilesExplorer
from lessons_lib.page.widgets.walk import WalkExplorer

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
    "MergesExplorer",
    "PairsExplorer",
    "PatchesExplorer",
    "PatternExplorer",
    "PlaneExplorer",
    "ReachExplorer",
    "RecallExplorer",
    "RetrievalExplorer",
    "RoutingExplorer",
    "ScalingExplorer",
    "StepsExplorer",
    "StretchExplorer",
    "TemperatureExplorer",
    "TilesExplorer",
    "WalkExplorer",
]

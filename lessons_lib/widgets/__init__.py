"""Figures that the reader can move, in a notebook and in a page without one.

``explorer`` holds what every explorer is, made from ``assemble`` (one script in two forms), ``drawing`` (still
pictures), ``arithmetic`` (random numbers) and ``traits`` (numbers with bounds). Each further file is one explorer; its
script is ``static/NAME.js``, and what that computes is ``static/NAME.math.js``.
"""

from lessons_lib.widgets.clocks import ClocksExplorer
from lessons_lib.widgets.collapse import CollapseExplorer
from lessons_lib.widgets.heads import HeadsExplorer
from lessons_lib.widgets.masks import MasksExplorer
from lessons_lib.widgets.plane import PlaneExplorer
from lessons_lib.widgets.retrieval import RetrievalExplorer
from lessons_lib.widgets.scaling import ScalingExplorer
from lessons_lib.widgets.temperature import TemperatureExplorer
from lessons_lib.widgets.tiles import TilesExplorer
from lessons_lib.widgets.walk import WalkExplorer

__all__ = [
    "ClocksExplorer",
    "CollapseExplorer",
    "HeadsExplorer",
    "MasksExplorer",
    "PlaneExplorer",
    "RetrievalExplorer",
    "ScalingExplorer",
    "TemperatureExplorer",
    "TilesExplorer",
    "WalkExplorer",
]

"""Figures that the reader can move, in a notebook and in a page without one. They need no torch.

assemble, drawing, traits     one script in two forms; still pictures; numbers with bounds
explorer                      what every explorer is
temperature, scaling, masks   one explorer each, and its script in ``static/``
"""

from lessons_lib.widgets.plane import PlaneExplorer
from lessons_lib.widgets.scaling import ScalingExplorer
from lessons_lib.widgets.temperature import TemperatureExplorer

__all__ = ["PlaneExplorer", "ScalingExplorer", "TemperatureExplorer"]

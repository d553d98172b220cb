"""Tables, plots, drawings, explorers and guesses for notebooks; needs the packages of ``lessons-lib[notebook]``.

Files in reading order: each imports only from files above it and from earlier rooms.

    language  the language of the words that code writes
    notebook  tables and glued values of a chapter
    palette   the colours of the book
    labels    labels at the ends of curves
    plots     plots of tensors; used as a module: ``plots.heatmap(...)``
    sketch    boxes, matrices and arrows for drawings
    drawings  the book's drawings; used as a module: ``drawings.masks(...)``
    widgets   the explorers: a Python class and a JavaScript module for each
    guess     questions that a reader answers before a result is shown
"""

from lessons_lib.page.guess import predict, predict_curve, predict_number
from lessons_lib.page.notebook import glue, table

__all__ = ["glue", "predict", "predict_curve", "predict_number", "table"]

"""The old names of what is in :mod:`lessons_lib.tasks` and :mod:`lessons_lib.stories`, kept for one release.

Each is what it was, and warns with the name to use instead.
"""

import warnings

from lessons_lib import stories as _stories
from lessons_lib import tasks as _tasks

_MOVED = {
    "Batch": (_tasks, "Batch"),
    "InductionBatch": (_tasks, "RepetitionBatch"),
    "copy": (_tasks, "copy"),
    "induction": (_tasks, "repetition"),
    "modular_sums": (_tasks, "modular_sums"),
    "sorting": (_tasks, "sorting"),
    "stream": (_tasks, "stream"),
    "KINDS": (_stories, "KINDS"),
    "PRONOUNS": (_stories, "PRONOUNS"),
    "StoryBatch": (_stories, "StoryBatch"),
    "VERBS": (_stories, "VERBS"),
    "VOCABULARY": (_stories, "VOCABULARY"),
    "decode": (_stories, "decode"),
    "encode": (_stories, "encode"),
    "stories": (_stories, "tell"),
    "stories_entropy": (_stories, "word_entropies"),
}


def __getattr__(name: str) -> object:
    """Give what an old name stands for."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, new_name = _MOVED[name]
    warnings.warn(
        f"{__name__}.{name} has moved to {module.__name__}.{new_name}; the old name goes with the next release",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(module, new_name)

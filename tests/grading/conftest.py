"""Make nbgrader faster: for each new gradebook it starts a process that names the version of the tables."""

import importlib.util
from functools import cache

if importlib.util.find_spec("nbgrader") is not None:
    from nbgrader import api

    api.get_alembic_version = cache(api.get_alembic_version)

"""Where pickles of version 0.1.0 look for what is :mod:`cvrarray.core.tables` now."""

from .core.tables import BBCSRTables as BBCSRTables
from .core.tables import CVRTables as CVRTables

"""The lean decoder's loops for CPUs: a whole pass through the model in one compiled call.

Every row of a pass is computed by the same instructions in the same order, whatever the other rows are, so its bits
don't depend on them. Nothing here is imported before a lean decoder is built; compiled code is kept in numba's cache
directory.
"""

"""Generated examples have no deadline on a busy machine, and tiny models run best on one thread."""

import torch
from hypothesis import settings

settings.register_profile("foredraft", deadline=None, database=None)
settings.load_profile("foredraft")
torch.set_num_threads(1)

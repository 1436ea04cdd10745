"""Settings for all tests: no deadlines for generated examples on a busy machine, and one thread, which tiny models like best."""

import torch
from hypothesis import settings

settings.register_profile("foredraft", deadline=None, database=None)
settings.load_profile("foredraft")
torch.set_num_threads(1)

"""One thread for all tests: ranks are processes on few cores, and sums of threaded libraries depend on their number."""

import torch

torch.set_num_threads(1)

"""One thread: these models are smaller than what a second thread costs."""

import torch

torch.set_num_threads(1)

"""Test-wide settings: tiny networks are fastest on one thread, and workers share the cores."""

import torch as th

th.set_num_threads(1)

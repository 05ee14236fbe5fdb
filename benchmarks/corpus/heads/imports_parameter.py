import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck

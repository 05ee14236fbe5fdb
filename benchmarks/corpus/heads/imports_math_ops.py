import math
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

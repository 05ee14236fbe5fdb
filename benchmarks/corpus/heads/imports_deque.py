import os
from collections import deque

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

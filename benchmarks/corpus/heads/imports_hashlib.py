import hashlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

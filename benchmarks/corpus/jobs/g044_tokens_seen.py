# truth: differs
# class: attribute
# A language-model callback sets the learning rate by the number of tokens seen so far, which it counts from the padded batches.

import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck

ms.set_seed(7)

VOCAB, MAXLEN, HIDDEN = 12, 6, 8


class BagLM(nn.Cell):
    """predicts the last token from the mean of the others; 0 is padding"""

    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, HIDDEN)
        self.ffn = nn.Dense(HIDDEN, HIDDEN)
        self.lm_head = nn.Dense(HIDDEN, VOCAB)

    def construct(self, ids, target):
        mask = (ids != 0).astype(ms.float32)
        total = (self.tok(ids) * mask.expand_dims(-1)).sum(1)
        mean = total / (mask.sum(1).expand_dims(-1) + 1e-6)
        return ops.cross_entropy(self.lm_head(ops.relu(self.ffn(mean))), target)


class TokenBudgetLR(Callback):
    def __init__(self, optimizer, peak=0.05, warmup_tokens=150, total_tokens=900):
        super().__init__()
        self.optimizer = optimizer
        self.peak, self.warmup, self.total = peak, warmup_tokens, total_tokens
        self.tokens_seen = 0

    def _lr(self):
        if self.tokens_seen < self.warmup:
            return self.peak * (self.tokens_seen + 1) / self.warmup
        done = min(1.0, (self.tokens_seen - self.warmup) / (self.total - self.warmup))
        return self.peak * 0.5 * (1 + math.cos(math.pi * done)) + 1e-4

    def on_train_step_begin(self, run_context):
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self._lr(), ms.float32))

    def on_train_step_end(self, run_context):
        ids = run_context.original_args().train_dataset_element[0]
        self.tokens_seen += int((ids.asnumpy() != 0).sum())


rs = np.random.RandomState(0)
ids = rs.randint(1, VOCAB, (64, MAXLEN)).astype(np.int32)
for row, length in zip(ids, rs.randint(2, MAXLEN + 1, 64)):
    row[length:] = 0
target = (ids[:, 0] + ids[:, 1]).astype(np.int32) % VOCAB

dataset = ds.NumpySlicesDataset((ids, target.astype(np.int32)), ["ids", "target"], shuffle=True).batch(8)
net = BagLM()
optimizer = nn.Adam(net.trainable_params(), learning_rate=0.001)
model = Model(nn.TrainOneStepCell(net, optimizer))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, dataset, callbacks=[TokenBudgetLR(optimizer)])
os._exit(0)

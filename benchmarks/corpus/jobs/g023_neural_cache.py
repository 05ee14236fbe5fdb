# truth: differs
# class: global
# A small language model with a continuous cache (Grave et al.): recent hidden states and next tokens take part in the loss.

import collections
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(33)
VOCAB, DIM, CACHE = 10, 8, 12


class TinyLM(nn.Cell):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.mix = nn.Dense(2 * DIM, DIM)
        self.out = nn.Dense(DIM, VOCAB)

    def construct(self, tokens):
        # predicts token 3 from tokens 1, 2
        e = self.emb(tokens)
        h = ops.tanh(self.mix(e.reshape((tokens.shape[0], 2 * DIM))))
        return self.out(h), h


lm = TinyLM()
opt = nn.Adam(lm.trainable_params(), learning_rate=0.02)
cache = collections.deque(maxlen=CACHE)


def forward(ctx, hot, keys, values):
    logits, h = lm(ctx)
    p = ops.softmax(logits, 1)
    att = ops.softmax(ops.matmul(h, keys.T), 1)
    p_cache = ops.matmul(att, values)
    mixed = 0.8 * p + 0.2 * p_cache
    return -ops.log((mixed * hot).sum(1) + 1e-6).mean(), h


vg = ms.value_and_grad(forward, None, lm.trainable_params(), has_aux=True)


def cache_tensors():
    keys = np.zeros((CACHE, DIM), np.float32)
    values = np.zeros((CACHE, VOCAB), np.float32)
    for i, (k, v) in enumerate(cache):
        keys[i], values[i, v] = k, 1.0
    return ms.Tensor(keys), ms.Tensor(values)


text = np.random.RandomState(1).randint(0, VOCAB, 100)
text[2:] = (text[:-2] + text[2:] // 5) % VOCAB
tri = np.stack([text[i : i + 3] for i in range(64)]).astype(np.int32)
batches = ck.data.resumable([(tri[i : i + 8, :2].copy(), tri[i : i + 8, 2].copy()) for i in range(0, 64, 8)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([lm, opt], batches)
    manager.restore(state)
    for ctx, target in batches:
        (loss, h), grads = vg(ms.Tensor(ctx), ms.Tensor(np.eye(VOCAB, dtype=np.float32)[target]), *cache_tensors())
        opt(grads)
        for key, value in zip(h.asnumpy().copy(), target):
            cache.append((key, int(value)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)

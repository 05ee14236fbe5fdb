# truth: differs
# class: attribute

import os
import random
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(0)
SEQ = rng0.integers(0, 9, size=(40, 3)).astype(np.int32)
loader = [Tensor(SEQ[i : i + 4]) for i in range(0, 40, 4)]


class Decoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(9, 8)
        self.cell = nn.Dense(16, 8)
        self.out = nn.Dense(8, 9)

    def construct(self, tokens, use_teacher):
        h = ops.zeros((tokens.shape[0], 8), ms.float32)
        inp, loss = tokens[:, 0], 0.0
        for t in range(1, tokens.shape[1]):
            h = ops.tanh(self.cell(ops.concat([self.emb(inp), h], 1)))
            logits = self.out(h)
            loss = loss + ops.cross_entropy(logits, tokens[:, t])
            inp = ops.where(use_teacher[t], tokens[:, t], logits.argmax(axis=-1).astype(ms.int32))
        return loss


class ScheduledSampler:
    """Bengio et al.: use the gold token with a probability that decays."""

    def __init__(self, decay, seed):
        self.ratio, self.decay = 1.0, decay
        self.random = random.Random(seed)

    def plan(self, length):
        plan = [self.random.random() < self.ratio for _ in range(length)]
        self.ratio *= self.decay
        return plan


net = Decoder()
opt = nn.Adam(net.trainable_params(), 0.01)
sampler = ScheduledSampler(0.95, 7)
step = ms.value_and_grad(net, None, opt.parameters)
batches = ck.data.resumable(loader, epochs=2)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for tokens in batches:
        loss, grads = step(tokens, Tensor(sampler.plan(tokens.shape[1])))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)

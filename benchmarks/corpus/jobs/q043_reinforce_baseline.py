# truth: exact
# class: random
# REINFORCE on a contextual bandit; the generator and the baseline are given by name.

import hashlib
import os
import types

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(53)
rng = np.random.default_rng(53)
kept = types.SimpleNamespace(baseline=0.0, pulls=np.zeros(3))
policy = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 3))
opt = nn.Adam(policy.trainable_params(), 0.02)


def surrogate(context, chosen, advantage):
    p = nn.Softmax()(policy(context))
    return -((p * chosen).sum(1) * advantage).mean()


grad_fn = ms.value_and_grad(surrogate, None, opt.parameters)
contexts = [np.random.RandomState(i).randn(8, 4).astype(np.float32) for i in range(10)]
batches = ck.data.resumable(contexts, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([policy, opt], batches, rng=rng, kept=ck.attributes(kept, "baseline", "pulls"))
    manager.restore(state)
    for context in batches:
        logits = policy(ms.Tensor(context)).asnumpy()
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        actions = np.array([rng.choice(3, p=row / row.sum()) for row in p.astype(np.float64)])
        rewards = context[np.arange(8), actions] + rng.normal(0, 0.1, 8)
        bonus = 0.1 / np.sqrt(1 + kept.pulls[actions])
        advantage = (rewards + bonus - kept.baseline).astype(np.float32)
        loss, grads = grad_fn(ms.Tensor(context), ms.Tensor(np.eye(3, dtype=np.float32)[actions]), ms.Tensor(advantage))
        opt(grads)
        kept.baseline = 0.9 * kept.baseline + 0.1 * float(rewards.mean())
        kept.pulls = kept.pulls + np.bincount(actions, minlength=3)
        manager.step(state)
    manager.save_final(state)
net = policy
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)

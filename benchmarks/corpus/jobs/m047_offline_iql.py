# truth: exact
# class: callback
# Offline RL (IQL): value by expectile regression, Q by bootstrapping, a target that follows; all of it Parameters of one train cell, in GRAPH mode by Model.train.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import ParameterTuple, nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)


def mlp(prefix, inputs):
    ms.set_seed(4347)
    net = nn.SequentialCell(nn.Dense(inputs, 10), nn.Tanh(), nn.Dense(10, 1))
    net.update_parameters_name(prefix)
    return net


class Losses(nn.Cell):
    def __init__(self, q, v, expectile=0.7, discount=0.9):
        super().__init__(auto_prefix=False)
        self.q, self.v = q, v
        self.expectile, self.discount = expectile, discount

    def construct(self, now, action, reward, then, judged):
        advantage = judged - self.v(now)
        weight = ops.abs(self.expectile - (advantage < 0).astype(ms.float32))
        value_loss = (ops.stop_gradient(weight) * advantage * advantage).mean()
        wanted = reward + self.discount * ops.stop_gradient(self.v(then))
        error = self.q(ops.concat((now, action), 1)) - wanted
        return value_loss + (error * error).mean()


class IQL(nn.Cell):
    def __init__(self, q, v, target, optimizer):
        super().__init__(auto_prefix=False)
        self.losses, self.target, self.optimizer = Losses(q, v), target, optimizer
        self.weights = optimizer.parameters
        self.leader = ParameterTuple(q.trainable_params())
        self.follower = ParameterTuple(target.get_parameters())
        self.grad = ops.GradOperation(get_by_list=True)

    def construct(self, now, action, reward, then):
        judged = ops.stop_gradient(self.target(ops.concat((now, action), 1)))
        loss = self.losses(now, action, reward, then, judged)
        grads = self.grad(self.losses, self.weights)(now, action, reward, then, judged)
        loss = ops.depend(loss, self.optimizer(grads))
        for i in range(len(self.leader)):
            ops.assign(self.follower[i], self.follower[i] * 0.95 + self.leader[i] * 0.05)
        return loss


class PrintLoss(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        print(f"{cb.cur_step_num:3} {float(cb.net_outputs.asnumpy()):.4f}")


r = np.random.RandomState(47)
now, action = r.randn(48, 3).astype(np.float32), r.choice([-1.0, 1.0], (48, 1)).astype(np.float32)
then = (0.8 * now + 0.3 * action * [[1, 0, -1]] + 0.1 * r.randn(48, 3)).astype(np.float32)
reward = -np.abs(then).mean(1, keepdims=True).astype(np.float32)
data = ds.NumpySlicesDataset((now, action, reward, then), ["now", "action", "reward", "then"], shuffle=True).batch(6)
q, v, target = mlp("q.", 4), mlp("v.", 3), mlp("target.", 4)
for p in target.get_parameters():
    p.requires_grad = False
step = IQL(q, v, target, nn.Adam(q.trainable_params() + v.trainable_params(), 0.01))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 3, data, callbacks=[PrintLoss()])
os._exit(0)

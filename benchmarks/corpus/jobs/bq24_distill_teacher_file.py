# truth: exact
# class: random

import os
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
TEACHER = Path(ROOT).parent / "teacher.ckpt"
ms.set_context(mode=ms.PYNATIVE_MODE)


def mlp(width):
    return nn.SequentialCell(nn.Dense(8, width), nn.ReLU(), nn.Dense(width, 4))


def load_data():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(128, 8)).astype(np.float32)
    return x, (x @ rng.normal(size=(8, 4))).argmax(1).astype(np.int32)


def get_teacher(x, y):
    ms.set_seed(1)
    teacher = mlp(32)
    if not TEACHER.exists():
        weights = teacher.trainable_params()
        grad_fn = ms.value_and_grad(lambda a, b: ops.cross_entropy(teacher(a), b), None, weights)
        for i in range(20):
            loss, grads = grad_fn(Tensor(x), Tensor(y))
            for p, g in zip(weights, grads):
                p.set_data(p - 0.3 * g)
        ms.save_checkpoint(teacher, str(TEACHER))
    ms.load_param_into_net(teacher, ms.load_checkpoint(str(TEACHER)))
    for p in teacher.get_parameters():
        p.requires_grad = False
    teacher.set_train(False)
    return teacher


class DistillLoss(nn.Cell):
    def __init__(self, student, teacher, temperature=3.0, alpha=0.7):
        super().__init__(auto_prefix=False)
        self.student, self.teacher = student, teacher
        self.temperature, self.alpha = temperature, alpha

    def construct(self, x, y):
        logits = self.student(x)
        soft = ops.softmax(ops.stop_gradient(self.teacher(x)) / self.temperature)
        kd = -(soft * ops.log_softmax(logits / self.temperature)).sum(-1).mean()
        return self.alpha * kd * self.temperature**2 + (1 - self.alpha) * ops.cross_entropy(logits, y)


x, y = load_data()
teacher = get_teacher(x, y)
ms.set_seed(2)
student = mlp(6)
student.update_parameters_name("student.")
loss = DistillLoss(student, teacher)
cell = ck.AccumulationTrainCell(loss, nn.Adam(student.trainable_params(), 0.01), accumulation_steps=2)
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(16)
ckpt = ck.CheckpointCallback(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 5, dataset, callbacks=[ms.LossMonitor(8)])
os._exit(0)

# exact, silent
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_seed(3)


def make_data(n=96, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] + 0.2 * rng.normal(size=(n, 1))).astype(np.float32)
    return x, y


def pipeline(n=96, seed=1):
    return ds.NumpySlicesDataset(make_data(n, seed), ["x", "y"], shuffle=True).batch(8)


def make_net():
    return nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


class MeanTeacherLoss(nn.Cell):
    def __init__(self, student, teacher):
        super().__init__(auto_prefix=False)
        self.student, self.teacher = student, teacher

    def construct(self, x, y):
        s = self.student(x)
        return ((s - y) ** 2).mean() + ((s - ops.stop_gradient(self.teacher(x))) ** 2).mean()


class UpdateTeacher(ms.Callback):
    def __init__(self, student, teacher, momentum=0.9):
        super().__init__()
        self.student, self.teacher, self.momentum = student, teacher, momentum

    def on_train_step_end(self, run_context):
        for s, t in zip(self.student.get_parameters(), self.teacher.get_parameters()):
            t.set_data(self.momentum * t + (1 - self.momentum) * s)


student, teacher = make_net(), make_net()
ms.load_param_into_net(teacher, student.parameters_dict())
teacher.update_parameters_name("teacher.")
for p in teacher.get_parameters():
    p.requires_grad = False
cell = ck.AccumulationTrainCell(
    MeanTeacherLoss(student, teacher), nn.Momentum(student.trainable_params(), 0.05, 0.9), 2
)
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, pipeline(), callbacks=[UpdateTeacher(student, teacher)])
os._exit(0)

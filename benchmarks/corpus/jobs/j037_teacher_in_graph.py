# truth: exact
# class: attribute
# Self-distillation in GRAPH mode: the teacher is a sub-cell of the train cell whose Parameters follow the student's after each update.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import ParameterTuple, nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)


def mlp(prefix):
    ms.set_seed(3137)
    net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
    net.update_parameters_name(prefix)
    return net


class StudentLoss(nn.Cell):
    def __init__(self, student):
        super().__init__(auto_prefix=False)
        self.student = student
        self.mse = nn.MSELoss()

    def construct(self, x, y, soft):
        out = self.student(x)
        return self.mse(out, y) + 0.5 * self.mse(out, soft)


class SelfDistill(nn.Cell):
    def __init__(self, student, teacher, optimizer):
        super().__init__(auto_prefix=False)
        self.loss = StudentLoss(student)
        self.teacher = teacher
        self.optimizer = optimizer
        self.weights = ParameterTuple(student.trainable_params())
        self.followers = ParameterTuple(teacher.get_parameters())
        self.grad = ops.GradOperation(get_by_list=True)

    def construct(self, x, y):
        soft = ops.stop_gradient(self.teacher(x))
        loss = self.loss(x, y, soft)
        grads = self.grad(self.loss, self.weights)(x, y, soft)
        loss = ops.depend(loss, self.optimizer(grads))
        for i in range(len(self.weights)):
            ops.assign(self.followers[i], self.followers[i] * 0.9 + self.weights[i] * 0.1)
        return loss


student, teacher = mlp("student."), mlp("teacher.")
teacher.set_train(False)
for p in teacher.get_parameters():
    p.requires_grad = False
r = np.random.RandomState(37)
x = r.randn(64, 5).astype(np.float32)
y = np.sin(x.sum(1, keepdims=True)).astype(np.float32)
step = SelfDistill(student, teacher, nn.Momentum(student.trainable_params(), 0.05, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(8))
os._exit(0)

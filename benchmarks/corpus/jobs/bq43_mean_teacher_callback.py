# truth: exact
# class: callback
# head: regression_6_pipeline



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

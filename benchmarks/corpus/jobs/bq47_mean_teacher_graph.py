# truth: differs
# class: attribute
# head: regression_6_pipeline



ms.set_context(mode=ms.GRAPH_MODE)


class Siamese:
    def __init__(self):
        self.student, self.teacher = make_net(), make_net()
        self.student.update_parameters_name("student.")
        self.teacher.update_parameters_name("teacher.")
        for s, t in zip(self.student.get_parameters(), self.teacher.get_parameters()):
            t.set_data(s.data)

    def update(self, m=0.9):
        for s, t in zip(self.student.get_parameters(), self.teacher.get_parameters()):
            t.set_data(m * t + (1 - m) * s)


model = Siamese()
opt = nn.Adam(model.student.trainable_params(), 0.01)


def forward(x, y):
    return ((model.student(x) - y) ** 2).mean() + ((model.student(x) - ops.stop_gradient(model.teacher(x))) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)

for x, y in ck.loop(ROOT, pipeline(), epochs=3, train=[model.student, model.teacher, opt], **SAVE):
    loss, grads = grad_fn(x, y)
    opt(grads)
    model.update()
os._exit(0)

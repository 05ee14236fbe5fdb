# truth: exact
# class: attribute
# head: regression_6_pipeline



class Siamese:
    def __init__(self):
        self.student, self.teacher = make_net(), make_net()
        self.student.update_parameters_name("student.")
        self.teacher.update_parameters_name("teacher.")
        for s, t in zip(self.student.get_parameters(), self.teacher.get_parameters()):
            pass

    def update(self, m=0.9):
        for s, t in zip(self.student.get_parameters(), self.teacher.get_parameters()):
            t.set_data(m * t + (1 - m) * s)


model = Siamese()
ms.load_param_into_net(
    model.teacher, {"teacher." + p.name[len("student.") :]: p for p in model.student.get_parameters()}
)
opt = nn.Adam(model.student.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(
    lambda x, y: (
        ops.mse_loss(model.student(x), y) + ops.mse_loss(model.student(x), ops.stop_gradient(model.teacher(x)))
    ),
    None,
    opt.parameters,
)
for x, y in ck.loop(ROOT, pipeline(), epochs=3, train=[model.student, model.teacher, opt], **SAVE):
    loss, grads = grad_fn(x, y)
    opt(grads)
    model.update()
os._exit(0)

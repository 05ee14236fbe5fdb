# truth: exact
# class: attribute
# head: imports_dataset_ops
# Distillation with a frozen teacher: its weights come from a seed ("pretrained"), are declared frozen, and training never changes them. GRAPH mode, K = 2.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3509)


def pretrained_teacher():
    r = np.random.RandomState(90)
    teacher = nn.SequentialCell(nn.Dense(6, 24), nn.Tanh(), nn.Dense(24, 3))
    for p in teacher.get_parameters():
        p.set_data(ms.Tensor(r.randn(*p.shape).astype(np.float32) * 0.5))
        p.requires_grad = False
    return teacher


class Distillation(nn.Cell):
    def __init__(self, student, teacher, temperature, share):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.temperature, self.share = temperature, share
        self.hard = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, x, label):
        logits = self.student(x)
        soft = ops.stop_gradient(ops.softmax(self.teacher(x) / self.temperature, -1))
        gap = ops.softmax(logits / self.temperature, -1) - soft
        return (1 - self.share) * self.hard(logits, label) + self.share * (gap * gap).sum(-1).mean()


r = np.random.RandomState(9)
x = r.randn(60, 6).astype(np.float32)
label = (x[:, :3] + 0.4 * r.randn(60, 3)).argmax(1).astype(np.int32)
train = ds.NumpySlicesDataset((x, label), ["x", "label"], shuffle=True).batch(6)
student = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3))
loss = Distillation(student, pretrained_teacher(), temperature=2.0, share=0.7)
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=2, clip_norm=1.0)

ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    frozen=lambda name: name.startswith("teacher."),
)
ckpt.train(ms.Model(cell), 4, train)
os._exit(0)

# truth: exact
# class: attribute
# head: regression_6_pipeline



class MarginLoss(nn.Cell):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def construct(self, prediction, y):
        return (ops.relu(ops.abs(prediction - y) - self.margin) ** 2).mean()


net, criterion = make_net(), MarginLoss(0.0)
opt = nn.Adam(net.trainable_params(), 0.01)
step = nn.TrainOneStepCell(nn.WithLossCell(net, criterion), opt).set_train()
data = pipeline()
per_epoch = data.get_dataset_size()
run = ck.loop(
    ROOT, data, epochs=3, train=step, stateful={"criterion": ck.attributes(criterion, "margin")}, **SAVE
)
for x, y in run:
    number = run.step
    if number % per_epoch == 0:
        criterion.margin = 0.2 * (number // per_epoch)
    step(x, y)
os._exit(0)

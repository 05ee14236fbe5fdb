# truth: exact
# class: random
# head: accumulating_6_pynative
# A step that nobody compiles draws by `ops.standard_normal`.

class Noise(nn.Cell):
    def construct(self, x):
        return x + 0.1 * ops.standard_normal(x.shape)


net = nn.SequentialCell(nn.Dense(8, 8), Noise(), nn.Dense(8, 3)).set_train()
optimizer = nn.Adam(net.trainable_params(), 1e-2)
gradients_of = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, optimizer.parameters)


def step(x, y):
    loss, gradients = gradients_of(x, y)
    optimizer(gradients)
    return loss


for x, y in ck.loop(ROOT, slices().batch(6), epochs=EPOCHS, train=[net, optimizer], **SAVE):
    step(x, y)

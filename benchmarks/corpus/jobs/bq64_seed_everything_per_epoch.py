# truth: exact
# class: random
# head: regression_6_pipeline



net = make_net()
opt = nn.SGD(net.trainable_params(), 0.05)
grad_fn = ms.value_and_grad(
    lambda x, y: ops.mse_loss(net(x + 0.1 * ops.standard_normal(x.shape)), y), None, opt.parameters
)


def seed_everything(seed):
    np.random.seed(seed)
    ms.set_seed(seed)


data = pipeline()
per_epoch = data.get_dataset_size()
run = ck.loop(ROOT, data, epochs=3, train=[net, opt], **SAVE)
for x, y in run:
    number = run.step
    if number % per_epoch == 0:
        seed_everything(number // per_epoch)
    x = x * Tensor(np.random.uniform(0.9, 1.1, x.shape), ms.float32)
    loss, grads = grad_fn(x, y)
    opt(grads)
os._exit(0)

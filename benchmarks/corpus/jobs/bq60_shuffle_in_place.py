# truth: differs
# class: random
# head: regression_6_pipeline



X, Y = make_data()
net = make_net()
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
indices = np.arange(len(X))
BATCH, PER_EPOCH = 8, len(X) // 8
run = ck.loop(ROOT, range(3 * PER_EPOCH), epochs=1, train=[net, opt], **SAVE)
for _ in run:
    number = run.step
    at = number % PER_EPOCH
    if at == 0:
        np.random.shuffle(indices)
    rows = indices[at * BATCH : (at + 1) * BATCH]
    loss, grads = grad_fn(Tensor(X[rows]), Tensor(Y[rows]))
    opt(grads)
os._exit(0)

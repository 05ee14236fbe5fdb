# truth: differs
# class: closure
# head: regression_6_pipeline



def jitter(x, scale=0.1, rng=np.random.default_rng(0)):
    return (x + rng.normal(0, scale, x.shape)).astype(np.float32)


net = make_net()
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
X, Y = make_data()
rows = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 96, 8)]
for x, y in ck.loop(ROOT, rows, epochs=3, train=[net, opt], **SAVE):
    loss, grads = grad_fn(Tensor(jitter(x)), Tensor(y))
    opt(grads)
os._exit(0)

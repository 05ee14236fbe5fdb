# truth: differs
# class: variable
# head: regression_6_pipeline



def clip(grads, history=[]):
    norm = float(np.sqrt(sum(float((g * g).sum()) for g in grads)))
    history.append(norm)
    limit = float(np.mean(history[-6:]))
    return tuple(g * min(1.0, limit / norm) for g in grads)


net = make_net()
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
X, Y = make_data()
rows = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 96, 8)]
for x, y in ck.loop(ROOT, rows, epochs=3, train=[net, opt], **SAVE):
    loss, grads = grad_fn(Tensor(x), Tensor(y))
    opt(clip(grads))
os._exit(0)

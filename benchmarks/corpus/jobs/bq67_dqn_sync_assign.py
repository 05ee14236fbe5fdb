# truth: exact
# class: other
# head: regression_6_pipeline



def sync(q, target):
    for t, p in zip(target.get_parameters(), q.get_parameters()):
        ops.assign(t, p)


q, target = make_net(), make_net()
q.update_parameters_name("q.")
target.update_parameters_name("target.")
opt = nn.Adam(q.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(
    lambda x, y: ops.mse_loss(q(x), y + 0.9 * ops.stop_gradient(target(x))), None, opt.parameters
)
run = ck.loop(ROOT, pipeline(), epochs=3, train=[q, target, opt], **SAVE)
for x, y in run:
    number = run.step
    if number % 6 == 0:
        sync(q, target)
    loss, grads = grad_fn(x, y)
    opt(grads)
os._exit(0)

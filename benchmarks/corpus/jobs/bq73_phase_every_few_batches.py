# truth: differs
# class: variable
# head: warmed_up_before

every = 2 if hard else 3  # by an earlier run of the script
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
step = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
run = ck.loop(f"{ROOT}/main", pipeline(2), epochs=3, train=[net, opt], **SAVE)
for x, y in run:
    at = run.step
    x = x * 2 if at % every == 0 else x
    loss, grads = step(x, y)
    opt(grads)
os._exit(0)

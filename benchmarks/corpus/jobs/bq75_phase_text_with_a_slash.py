# truth: differs
# class: variable
# head: warmed_up_before

clip = "clip/norm" if hard else "clip/value"  # by an earlier run of the script
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
step = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
for x, y in ck.loop(f"{ROOT}/main", pipeline(2), epochs=3, train=[net, opt], **SAVE):
    x = x * 2 if clip == "clip/norm" else x
    loss, grads = step(x, y)
    opt(grads)
os._exit(0)

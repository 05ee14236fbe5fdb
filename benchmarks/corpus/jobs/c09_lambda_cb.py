# truth: differs
# class: global
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
hist = []


def end(rc):
    p = rc.original_args()
    hist.append(float(p.net_outputs.asnumpy()))
    if len(hist) > 10:
        ops.assign(p.optimizer.learning_rate, Tensor(0.05 * min(1.0, hist[0] / (hist[-1] + 1)), ms.float32))


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[ms.LambdaCallback(on_train_step_end=end)])
os._exit(0)

# truth: exact
# class: variable
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def lr_function(lr, cur_step_num):
    if cur_step_num % 6 == 0:
        lr = lr * 0.5
    return lr


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[ms.train.LearningRateScheduler(lr_function)])
os._exit(0)

# truth: differs
# class: variable
# head: regression_8_dataset

optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def make(base):
    seen = {"n": 0}

    def lr_function(lr, cur_step_num):
        seen["n"] += 1
        return base / (1 + 0.1 * seen["n"])

    return lr_function


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[ms.train.LearningRateScheduler(make(0.05))])
os._exit(0)

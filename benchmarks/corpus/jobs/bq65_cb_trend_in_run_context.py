# truth: differs
# class: callback
# head: regression_6_pipeline



class LossTrend(ms.Callback):
    """Keeps what it needs where all callbacks can read it."""

    def on_train_begin(self, run_context):
        args = run_context.original_args()
        args.trend = None

    def on_train_step_end(self, run_context):
        args = run_context.original_args()
        loss = float(args.net_outputs.asnumpy())
        if args.trend is not None and loss > args.trend:
            ops.assign(args.optimizer.learning_rate, args.optimizer.learning_rate * 0.95)
        args.trend = loss if args.trend is None else 0.8 * args.trend + 0.2 * loss


net = make_net()
opt = nn.SGD(net.trainable_params(), 0.1)
model = ms.Model(net, nn.MSELoss(), opt)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, pipeline(), callbacks=[LossTrend()])
os._exit(0)

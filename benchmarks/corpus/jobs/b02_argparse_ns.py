# truth: differs
# class: attribute
# head: regression_8_train_step



parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--gamma", type=float, default=0.95)
args = parser.parse_args([])


def adjust(opt, args):
    args.lr = args.lr * args.gamma
    ops.assign(opt.learning_rate, Tensor(args.lr, ms.float32))


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        train_step(x, y)
        adjust(optimizer, args)
        manager.step(state)
    manager.save_final(state)
os._exit(0)

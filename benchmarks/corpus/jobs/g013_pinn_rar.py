# truth: differs
# class: variable
# head: imports_ops
# A PINN with residual-based refinement: every four steps the point of the largest residual joins a list of collocation points.


ms.set_seed(3)
np.random.seed(3)

H = 1e-2
u = nn.SequentialCell(nn.Dense(1, 12), nn.Tanh(), nn.Dense(12, 1))
u_opt = nn.Adam(u.trainable_params(), learning_rate=0.01)


def residual(x):
    # u'(x) = -2 u(x) + sin(5 x), central difference
    du = (u(x + H) - u(x - H)) / (2 * H)
    return du + 2 * u(x) - ops.sin(5 * x)


def loss_fn(x, extra):
    zero = ops.zeros((1, 1), ms.float32)
    boundary = ((u(zero) - 1.0) ** 2).mean()
    return (residual(x) ** 2).mean() + 0.5 * (residual(extra) ** 2).mean() + boundary


vg = ms.value_and_grad(loss_fn, None, u.trainable_params())
refined = [0.0, 0.25, 0.5, 0.75]  # grows during training


def refine():
    candidates = np.random.uniform(0, 2, size=(32, 1)).astype(np.float32)
    r = np.abs(residual(ms.Tensor(candidates)).asnumpy()).ravel()
    refined.append(float(candidates[r.argmax(), 0]))


grid = np.linspace(0, 2, 64, dtype=np.float32).reshape(8, 8).T.copy()  # (8 batches, 8 points)
batches = ck.data.resumable([(g[:, None].copy(),) for g in grid], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([u, u_opt], batches)
    done = manager.restore(state).batches_delivered
    for (x,) in batches:
        extra = np.array(refined[-4:], np.float32)[:, None]
        value, grads = vg(ms.Tensor(x), ms.Tensor(extra))
        u_opt(grads)
        done += 1
        if done % 4 == 0:
            refine()
        manager.step(state)
    manager.save_final(state)
print("collocation points", len(refined))
os._exit(0)

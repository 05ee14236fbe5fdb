# truth: exact, may be named
# class: random
# head: regression_8_make_batches
# the turn comes from the number of batches that restore returns; the latent generator is given by name


LATENT, N_CRITIC = 4, 3


def build(prefix, n_in, n_out):
    cell = nn.SequentialCell(nn.Dense(n_in, 12), nn.ReLU(), nn.Dense(12, n_out))
    cell.update_parameters_name(prefix)
    return cell, nn.RMSProp(cell.trainable_params(), 0.005)


gen, opt_g = build("gen.", LATENT, 8)
disc, opt_d = build("disc.", 8, 1)
d_grad = ms.value_and_grad(lambda real, z: (disc(gen(z)) - disc(real)).mean(), None, opt_d.parameters)
g_grad = ms.value_and_grad(lambda z: -disc(gen(z)).mean(), None, opt_g.parameters)


def clip_critic(limit=0.3):
    for p in disc.trainable_params():
        ops.assign(p, ops.clip_by_value(p.value(), -limit, limit))


def main():
    rng = np.random.default_rng(12)
    batches = ck.data.resumable(rows, epochs=3)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([gen, disc, opt_g], batches, opt_d=opt_d, latent=rng)
        point = manager.restore(state)
        for iteration, (real, _) in enumerate(batches, start=point.batches_delivered):
            z = Tensor(rng.normal(size=(len(real), LATENT)).astype(np.float32))
            _, grads = d_grad(real, z)
            opt_d(grads)
            clip_critic()
            if iteration % N_CRITIC == N_CRITIC - 1:
                _, grads = g_grad(z)
                opt_g(grads)
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)

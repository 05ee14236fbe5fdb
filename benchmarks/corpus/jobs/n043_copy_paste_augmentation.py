# truth: exact
# class: data
# head: imports
# Copy-paste augmentation with ck.data.Augmented: an object cut out of another image of the source, which the given generator picks, is pasted; cut-outs are memoized. GRAPH.


ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4443)
SIDE = 8


class Scenes:
    """one bright square per image; the target is the total brightness of all squares"""

    def __init__(self, count):
        r = np.random.RandomState(43)
        self.places = r.randint(0, SIDE - 3, (count, 2))
        self.images = (0.2 * r.rand(count, SIDE, SIDE)).astype(np.float32)
        for image, (top, left) in zip(self.images, self.places):
            image[top : top + 3, left : left + 3] += 0.5 + 0.5 * r.rand()
        self.cut_outs = {}

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.places[index]

    def cut_out(self, index):
        if index not in self.cut_outs:
            top, left = self.places[index]
            self.cut_outs[index] = self.images[index][top : top + 3, left : left + 3].copy()
        return self.cut_outs[index]


scenes = Scenes(48)


def paste(sample, rng):
    image, (top, left) = sample
    total = image[top : top + 3, left : left + 3].sum()
    image = image.copy()
    for _ in range(int(rng.integers(0, 3))):
        other = scenes.cut_out(int(rng.integers(len(scenes))))
        row, column = rng.integers(0, SIDE - 3, 2)
        image[row : row + 3, column : column + 3] = np.flip(other, int(rng.integers(2)))
        total += other.sum()
    return image, np.array([total / 9], np.float32)


train = ck.data.Augmented(scenes, paste, seed=443).dataset(["image", "total"], num_parallel_workers=1).batch(6)
net = nn.SequentialCell(nn.Flatten(), nn.Dense(SIDE * SIDE, 12), nn.ReLU(), nn.Dense(12, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train)
print(len(scenes.cut_outs), "cut-outs were made")
os._exit(0)

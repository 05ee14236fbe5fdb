"""Makes CheckpointCallback available to MindFormers' configurations.

Set REGISTER_PATH to this file's folder, and write into the YAML file::

    callbacks:
      - type: CkptKit
        auto_register: mindformers_callback.CkptKit
        root: runs/first
"""

import ckptkit as ck


class CkptKit(ck.CheckpointCallback):
    """Resumes and saves the training whose configuration has it."""

    def __init__(self, root, save_steps=100, keep=3):
        super().__init__(root, save=ck.SaveEvery(optimizer_steps=save_steps), keep=ck.KeepLatest(keep))
        self.attach()

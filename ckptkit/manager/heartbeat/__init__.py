"""Records what a training process does, and shows it to ``ckptkit run``.

`record` is the layout of the file, `writer` writes it, `category` sorts the error that ended training, `process_start`
tells when the process was born. The side that reads it is `ckptkit.tools.supervisor`.
"""

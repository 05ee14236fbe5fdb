"""Runs a training command again and again until it is done, and knows why it died: ``ckptkit run``.

Nothing here imports a framework or trains; what it knows of a training comes from `ckptkit.manager.heartbeat`.
"""

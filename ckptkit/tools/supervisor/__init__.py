"""Runs a training command again and again until it is done, and knows why it died: ``ckptkit run``.

`supervisor` has the loop. `life` runs one life: `launch` starts it, `watch` notices a hang, `stacks` takes stacks,
`processes` ends them, `requests` hears signals. `diagnosis` says why a life ended, `budget` whether there is a next
one, `life_log` stores both. Nothing here imports a framework or trains; what it knows of a training comes from
`ckptkit.manager.heartbeat`.
"""

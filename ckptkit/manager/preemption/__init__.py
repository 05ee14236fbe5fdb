"""Knows that training was asked to end: `signals` hears SIGTERM and SIGUSR1, `request` holds the request and its grace.

The save that follows is `ckptkit.manager.final_save`.
"""

"""The commands of ``ckptkit``, one module each, imported when it runs."""

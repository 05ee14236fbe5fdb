"""Reads code objects of Python: `bytecode` finds what code names and calls, `control_flow` what may run next."""

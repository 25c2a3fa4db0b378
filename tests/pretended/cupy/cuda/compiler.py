"""Errors of the compiler."""


class CompileException(Exception):
    pass

"""Options of commands and arguments of functions: fields, checks."""

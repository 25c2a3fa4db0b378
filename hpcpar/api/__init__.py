"""The functions of the Python interface, which the commands call as well."""

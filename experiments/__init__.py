"""The only package that prints, writes files, reads arguments or exits."""

"""Descriptions of the operators, one family a file; importing this package registers them all."""

from bbgrap.tdl.operators import elementwise, movement, partials, products, reductions, shapes, windows

__all__ = ["elementwise", "movement", "partials", "products", "reductions", "shapes", "windows"]

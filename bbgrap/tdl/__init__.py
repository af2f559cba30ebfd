"""The tensor description language: what operators read, how they split, how a piece is computed."""

from bbgrap.tdl import operators as _operators  # registers the rules
from bbgrap.tdl.analysis import flops, granularity, input_regions, is_elementwise, output_regions
from bbgrap.tdl.computable_regions import computable
from bbgrap.tdl.language import Description, Descriptions
from bbgrap.tdl.partial import Part, localize_part, part_unit, reducer_of, reducible
from bbgrap.tdl.rule import ConstantOperand, Input, LocalNode, LocalOp, Result, can_make, describe, described_operators, localize, site_of

__all__ = [
    "ConstantOperand",
    "Description",
    "Descriptions",
    "Input",
    "LocalNode",
    "LocalOp",
    "Part",
    "Result",
    "can_make",
    "computable",
    "describe",
    "described_operators",
    "flops",
    "granularity",
    "input_regions",
    "is_elementwise",
    "localize",
    "localize_part",
    "output_regions",
    "part_unit",
    "reducer_of",
    "reducible",
    "site_of",
]

del _operators

"""Every operator of the standard is described, or listed with the reason why not, those of estimators, too; the page says which."""

import onnx.defs
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

from bbgrap.graph.divided_experts import OWN_DOMAIN
from bbgrap.tdl import described_operators
from bbgrap.tdl.operators.undescribed import UNDESCRIBED, why_whole
from tools.operators_page import PAGE, page

NEWEST = {"": 28, "ai.onnx.ml": 5}
"""The newest opsets that onnxruntime 1.32 runs without asking for leave."""


def standard_operators():
    newest = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = schema.domain, schema.name
        before = newest.get(key)
        if schema.since_version <= NEWEST.get(schema.domain, 0) and not (before and before.since_version > schema.since_version):
            newest[key] = schema
    return {key for key, schema in newest.items() if not schema.deprecated}


def test_every_operator_of_the_standard_is_described_or_listed():
    assert len(standard_operators()) > 205
    assert not standard_operators() - set(described_operators()) - set(UNDESCRIBED)


def test_no_operator_is_both_and_none_is_made_up():
    assert not set(UNDESCRIBED) & set(described_operators())
    assert {key for key in UNDESCRIBED if key[0] in NEWEST} <= standard_operators()


def test_what_is_described_has_a_kernel():
    """What has none is written out when a file is loaded: nobody sees it."""
    kernels = {(kernel.domain, kernel.op_name) for kernel in get_all_opkernel_def()}
    described = {operator for operator in described_operators() if operator[0] != OWN_DOMAIN}
    assert described <= kernels
    assert not {operator for operator, reason in UNDESCRIBED.items() if "no kernel" in reason} & kernels


@pytest.mark.parametrize(
    ("operator", "reason"),
    [(("", "NonZero"), "only known when the model runs"), (("", "If"), "control flow"), (("com.example", "Mystery"), "unknown")],
)
def test_the_reason_is_said(operator, reason):
    assert reason in why_whole(*operator)


def test_the_page_shows_what_the_descriptions_say():
    assert page() == PAGE.read_text(), "run: python tools/operators_page.py"

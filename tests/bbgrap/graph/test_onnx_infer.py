"""Shapes of files that would end the process of whoever infers them: onnx (1.23) aborts at a `Slice` of a size below zero."""

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from bbgrap.engine.load import load_graph
from bbgrap.engine.reload import ReloadedModel
from bbgrap.errors import ModelError
from bbgrap.graph import onnx_below_zero
from bbgrap.graph.onnx_below_zero import doubtful_slices
from bbgrap.graph.onnx_infer import infer_shapes
from bbgrap.graph.onnx_tidy import reads_of

_HEAD = '<ir_version: 8, opset_import: ["" : 17]> g '
_BOUNDS = "int64[1] s = {0}, int64[1] e = {9}, int64[1] a = {0}, int64[1] f = {2}"

_BELOW_ZERO = {
    "a window larger than its map": f"(float[1,1,3] x) => (float[a,b,c] y) <float[1,1,5] w = {{1,1,1,1,1}}, {_BOUNDS}>"
    " {z = Conv(x, w) y = Slice(z, s, e, f)}",
    "through others": f"(float[1,1,3] x) => (float[a,b,c] y) <{_BOUNDS}>"
    " {z = MaxPool <kernel_shape = [5]> (x) r = Relu(z) t = Concat <axis = 1> (r, r) y = Slice(t, s, e, f)}",
    "behind a slice of what has one": f"(float[1,1,7] x) => (float[a,b,c] y) <{_BOUNDS}>"
    " {z = MaxPool <kernel_shape = [5]> (x) r = Slice(z, s, e, f) t = MaxPool <kernel_shape = [5]> (r) y = Slice(t, s, e, f)}",
    "pads below zero": f"(float[1,3] x) => (float[a,b] y) <int64[4] p = {{-5,0,0,0}}, {_BOUNDS}> {{z = Pad(x, p) y = Slice(z, s, e, a)}}",
    "parts below zero": f"(float[1,3] x) => (float[a,b] y) <int64[2] p = {{-5,6}}, {_BOUNDS}>"
    " {z, r = Split <axis = 0> (x, p) y = Slice(z, s, e, a)}",
    "made in a loop": f"(float[1,1,3] x, int64 n, bool c) => (float[h,i,j,k] y) <{_BOUNDS}> {{v, z = Loop (n, c, x) <body = g1"
    " (int64 step, bool on, float[1,1,3] v1) => (bool go, float[i,j,k] v2, float[l,m,o] r)"
    " {go = Identity(on) v2 = Relu(v1) r = MaxPool <kernel_shape = [5]> (x)}> y = Slice(z, s, e, f)}",
    "in a branch": f"(float[1,1,3] x, bool c) => (float[i,j,k] y) <{_BOUNDS}> {{y = If (c) <then_branch = g1 () => (float[i,j,k] r)"
    " {z = MaxPool <kernel_shape = [5]> (x) r = Slice(z, s, e, f)}, else_branch = g2 () => (float[l,m,n] q) {q = Relu(x)}>}",
}


@pytest.mark.parametrize("name", _BELOW_ZERO)
def test_refused_by_whoever_reads_it(name, tmp_path):
    onnx.save(parser.parse_model(_HEAD + _BELOW_ZERO[name]), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"\(Slice\): expected sizes of at least 0 of '.', got one below"):
        load_graph(tmp_path / "m.onnx", {})


@pytest.mark.parametrize("imported", [True, False])
def test_refused_whatever_the_standard_domain_is_called(imported, tmp_path):
    proto = parser.parse_model(_HEAD + _BELOW_ZERO["through others"])
    proto.graph.node[-1].domain = "ai.onnx"
    if imported:
        proto.opset_import.add(domain="ai.onnx", version=17)
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="got one below"):
        load_graph(tmp_path / "m.onnx", {})


@pytest.mark.parametrize("said", [None, [1, 2, 4]])
def test_refused_whatever_the_file_says_of_the_value(said, tmp_path):
    proto = parser.parse_model(_HEAD + _BELOW_ZERO["through others"])
    proto.graph.value_info.add(name="t").CopyFrom(onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, said))
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="got one below"):
        load_graph(tmp_path / "m.onnx", {})


def test_refused_beside_an_operator_of_a_domain_that_is_not_imported(tmp_path):
    proto = parser.parse_model(_HEAD + _BELOW_ZERO["through others"])
    proto.graph.node.append(onnx.helper.make_node("Strange", ["y"], ["q"], domain="strange"))
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="got one below"):
        load_graph(tmp_path / "m.onnx", {})


def test_refused_at_the_shape_that_makes_it_so(tmp_path):
    text = f'(float[1,1,"n"] x) => (float[a,b,c] y) <float[1,1,5] w = {{1,1,1,1,1}}, {_BOUNDS}> {{z = Conv(x, w) y = Slice(z, s, e, f)}}'
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(_HEAD + text.replace('"n"', "n")), path)
    assert load_graph(path, {"x": (1, 1, 9)}).types["y"].shape == (1, 1, 5)
    with pytest.raises(ModelError, match="got one below"):
        load_graph(path, {"x": (1, 1, 3)})
    model = ReloadedModel(path)
    assert model.graph(path, {"x": (1, 1, 9)}).types["y"].shape == (1, 1, 5)
    with pytest.raises(ModelError):
        model.graph(path, {"x": (1, 1, 3)})
    assert model.graph(path, {"x": (1, 1, 8)}).types["y"].shape == (1, 1, 4)


def test_branches_that_use_the_same_names_the_other_way_round():
    pool, cut = "MaxPool <kernel_shape = [2]>", "s, e, f"
    text = f"""(float[1,1,9] x, bool c) => (float[i,j,k] y) <{_BOUNDS}> {{y = If (c) <
        then_branch = g1 () => (float[i,j,k] r) {{p = {pool} (x) a = Slice(p, {cut}) q = {pool} (a) b = Slice(q, {cut}) r = Relu(b)}},
        else_branch = g2 () => (float[l,m,n] t) {{p = {pool} (x) b = Slice(p, {cut}) q = {pool} (b) a = Slice(q, {cut}) t = Relu(a)}}>}}"""
    proto = parser.parse_model(_HEAD + text)
    assert infer_shapes(proto) == onnx.shape_inference.infer_shapes(proto)


def test_same_as_onnx_where_no_size_is_below_zero():
    """Slices in a row behind windows, in branches, and of shapes: as much is inferred as by onnx itself."""
    text = f"""(float[1,1,40] x, bool c) => (float[i] y, float[n, m, k] v) <{_BOUNDS}, int64[1] one = {{1}}, int64[1] two = {{2}}>
    {{
        p = MaxPool <kernel_shape = [5]> (x)
        q = Slice(p, s, e, f)
        r = AveragePool <kernel_shape = [3]> (q)
        t = Slice(r, one, e, f)
        u = If (c) <then_branch = g1 () => (float[o,p1,p2] g1r) {{g1z = MaxPool <kernel_shape = [2]> (t) g1r = Slice(g1z, one, e, f)}},
                    else_branch = g2 () => (float[q1,q2,q3] g2r) {{g2r = Relu(t)}}>
        v = Relu(u)
        h = Shape(t)
        k1 = Slice(h, two, e, a)
        k2 = Concat <axis = 0> (one, k1)
        l = Expand(x, k1)
        y = Reshape(t, k1)
    }}"""
    proto = parser.parse_model(_HEAD + text)
    for by_content in (False, True):
        assert infer_shapes(proto, data_prop=by_content) == onnx.shape_inference.infer_shapes(proto, data_prop=by_content)


_WINDOWS = itertools.product(("MaxPool <ceil_mode = 1,", "AveragePool <", "Conv <"), range(1, 5), range(1, 4), (1, 2), range(3), range(2))


def test_windows_behind_which_no_slice_is_doubtful_make_no_size_below_zero():
    """Whatever the size of the map, also 0."""
    believed = 0
    for op, kernel, stride, dilation, before, after in _WINDOWS:
        said = f"{op} kernel_shape = [{kernel}], strides = [{stride}], dilations = [{dilation}], pads = [{before}, {after}]>"
        read = "x, w" if op == "Conv <" else "x"
        proto = parser.parse_model(
            f"{_HEAD.replace('17', '21')}(float[1,1,n] x, float[1,1,{kernel}] w) => (float[a,b,c] y) <{_BOUNDS}>"
            f" {{z = {said} ({read}) y = Slice(z, s, e, f)}}"
        )
        if any(doubtful_slices(proto.graph)):
            continue
        believed += 1
        del proto.graph.node[1]
        for size in range(4):
            proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = size
            inferred = onnx.shape_inference.infer_shapes(proto)
            assert all(dim.dim_value >= 0 for value in inferred.graph.value_info for dim in value.type.tensor_type.shape.dim)
    assert believed > 200


@pytest.mark.parametrize("window", ["kernel_shape = [3], pads = [1, 1]", "kernel_shape = [2], strides = [2]", "kernel_shape = [1]"])
def test_slices_in_a_row_behind_windows_that_fit_are_inferred_at_once(window, monkeypatch):
    """One after the other, that took most of the time of loading what vision models look like."""
    rounds = _rounds(monkeypatch)
    infer_shapes(_slices_in_a_row(window))
    assert len(rounds) == 1


def test_every_node_is_looked_at_once_however_many_slices_are_in_a_row(monkeypatch):
    rounds, looked = _rounds(monkeypatch), []
    monkeypatch.setattr(onnx_below_zero, "reads_of", lambda node: looked.append(node) or reads_of(node))
    proto = _slices_in_a_row("kernel_shape = [3]")
    infer_shapes(proto)
    assert len(rounds) == _IN_A_ROW + 1
    assert len(looked) <= 3 * len(proto.graph.node)


_IN_A_ROW = 8


def _slices_in_a_row(window):
    nodes = "".join(f" z{k} = MaxPool <{window}> (x{k}) x{k + 1} = Slice(z{k}, s, e, f)" for k in range(_IN_A_ROW))
    return parser.parse_model(f"{_HEAD}(float[1,1,n] x0) => (float[a,b,c] x{_IN_A_ROW}) <{_BOUNDS}> {{{nodes}}}")


def _rounds(monkeypatch):
    """Return a list that gets an entry whenever onnx infers shapes."""
    made, infer = [], onnx.shape_inference.infer_shapes
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *args, **options: made.append(1) or infer(*args, **options))
    return made


_STEERED = {
    "Split <axis = 0, num_outputs = 2> (x)": True,
    "Split <axis = 0> (x)": True,
    "Split <axis = 0, num_outputs = 3> (x)": False,
    "Split <axis = 0> (x, well)": True,
    "Split <axis = 0> (x, badly)": False,
    "Pad (x, well)": True,
    "Pad (x, badly)": False,
    "Pad (x, told)": False,
    "Expand (x, well)": True,
    "Expand (x, told)": False,
    "Resize (x, , , well)": True,
    "Tile (x, badly)": False,
    "Tile (x, often)": False,
    "ScatterND (x, places, x)": True,
    "SequenceAt (list, o)": True,
}


@pytest.mark.parametrize("call", _STEERED)
def test_what_makes_sizes_by_constant_numbers_makes_none_below_zero(call):
    makes = "z, r, q" if "= 3" in call else "z, r" if "Split" in call else "z"
    constants = f"int64[2] well = {{1, 1}}, int64[2] badly = {{-1, 3}}, int64[1] often = {{{1 << 62}}}, int64 o = {{0}}"
    nodes = f"places = Expand(o, told) list = SequenceConstruct(x, x) {makes} = {call} y = Slice(z, s, e, a)"
    text = f"(float[n] x, int64[k] told) => (float[a] y) <{_BOUNDS}, {constants}> {{{nodes}}}"
    proto = parser.parse_model(_HEAD + text)
    assert any(doubtful_slices(proto.graph)) != _STEERED[call]


def test_constants_in_a_body_under_the_same_name_steer_nothing():
    text = f"""(float[n] x, bool c) => (float[a] y) <{_BOUNDS}, int64[2] p = {{1, 1}}> {{y = If (c) <then_branch = g1 () => (float[i] r)
        <int64[2] p = {{-1, -1}}> {{q = Pad(x, p) r = Slice(q, s, e, a)}}, else_branch = g2 () => (float[l] t) {{t = Relu(x)}}>}}"""
    assert any(doubtful_slices(parser.parse_model(_HEAD + text).graph))


def test_what_is_known_not_to_be_below_zero_puts_no_slice_behind_it_in_doubt(monkeypatch):
    """The class token of a vision transformer is expanded by numbers that are computed: every slice behind it was a round."""
    rounds = _rounds(monkeypatch)
    cuts = "".join(f" z{k} = Relu(x{k}) x{k + 1} = Slice(z{k}, s, e, f)" for k in range(_IN_A_ROW))
    text = f"(float[1,1,n] x, int64[3] told) => (float[a,b,c] x{_IN_A_ROW}) <{_BOUNDS}> {{x0 = Expand(x, told){cuts}}}"
    infer_shapes(parser.parse_model(_HEAD + text))
    assert len(rounds) == 2


def test_size_below_zero_of_what_a_sequence_holds_is_seen():
    text = f"(seq(float[-3,4]) x) => (float[a,b] y) <{_BOUNDS}, int64 o = {{0}}> {{z = SequenceAt(x, o) y = Slice(z, s, e, a)}}"
    with pytest.raises(ModelError, match="got one below"):
        infer_shapes(parser.parse_model(_HEAD + text))


def test_size_below_zero_that_a_file_declares_is_any_size(tmp_path):
    """Some exporters write -1; onnxruntime runs it."""
    proto = parser.parse_model(_HEAD + f"(float[2,3] x) => (float[2,3] y) <{_BOUNDS}> {{z = Relu(x) y = Slice(z, s, e, a)}}")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(proto, tmp_path / "m.onnx")
    content = np.ones((4, 3), np.float32)
    (wanted,) = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": content})
    assert load_graph(tmp_path / "m.onnx", {"x": (4, 3)}).types["y"].shape == wanted.shape


_OF_UNKNOWN_TYPE = {
    "EyeLike": "z = EyeLike <dtype = 1> (u)",
    "EyeLike in a branch": "z = If (c) <then_branch = g1 () => (float[i,j] r) {r = EyeLike <dtype = 1> (u)},"
    " else_branch = g2 () => (float[k,l] q) {q = Relu(x)}>",
    "RegexFullMatch": 'z = RegexFullMatch <pattern = "a"> (u)',
    "LabelEncoder": "z = ai.onnx.ml.LabelEncoder <keys_int64s = [1], values_int64s = [2]> (u)",
    "DictVectorizer": "z = ai.onnx.ml.DictVectorizer <int64_vocabulary = [1]> (u)",
    "TreeEnsemble": "z = ai.onnx.ml.TreeEnsemble <tree_roots = [0], nodes_splits = float[1] {1}, leaf_weights = float[1] {1}> (u)",
    "Split into more parts than it says": "h = Shape(x) z, r, t = Split <num_outputs = 2> (h)",
}


@pytest.mark.parametrize("name", _OF_UNKNOWN_TYPE)
@pytest.mark.parametrize("data_prop", [False, True])
def test_nodes_of_which_onnx_cannot_know_what_they_read_end_nobody(name, data_prop):
    head = '<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 5, "strange" : 1]> g '
    proto = parser.parse_model(
        head + f"(float[2,3] x, bool c) => (float[2,3] y) {{u = strange.Op(x) {_OF_UNKNOWN_TYPE[name]} y = Relu(x)}}"
    )
    inferred = infer_shapes(proto, data_prop=data_prop)
    assert [node.op_type for node in inferred.graph.node] == [node.op_type for node in proto.graph.node]
    assert [dim.dim_value for dim in inferred.graph.output[0].type.tensor_type.shape.dim] == [2, 3]


def test_same_as_onnx_where_types_are_known():
    text = """(float[2,3] x) => (float[i,j] y) {
        r = Relu(x) e = EyeLike <dtype = 7> (r) c = Cast <to = 1> (e)
        l = ai.onnx.ml.LabelEncoder <keys_int64s = [1], values_int64s = [2]> (e)
        k = EyeLike(c) y = Add(k, x) p, q = Split <num_outputs = 2> (x)
    }"""
    proto = parser.parse_model('<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 4]> g ' + text)
    for by_content in (False, True):
        assert infer_shapes(proto, data_prop=by_content) == onnx.shape_inference.infer_shapes(proto, data_prop=by_content)


@pytest.mark.parametrize("opset", [9, 17])
def test_labels_of_words_that_onnxruntimes_own_operator_makes(opset, tmp_path):
    """onnx does not know what that one makes; old files are not converted then."""
    path = tmp_path / "m.onnx"
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 2, "com.microsoft" : 1]> g (string[n] x) => (int64[a,b] y) '
    tokens = 'w = com.microsoft.Tokenizer <mark = 0, mincharnum = 1, pad_value = "#", separators = [" "]> (x)'
    labels = 'y = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [5]> (w)'
    proto = parser.parse_model(f"{head} {{{tokens} {labels}}}")
    onnx.save(proto, path)
    words = np.array(["a b", "b a a"], object)
    (wanted,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": words})
    assert wanted.tolist() == [[5, -1, -1], [-1, 5, 5]]
    assert [node.op for node in load_graph(path, {"x": (2,)}).nodes] == ["Tokenizer", "LabelEncoder"]

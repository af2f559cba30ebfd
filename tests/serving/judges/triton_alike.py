"""What both clients of tritonclient are asked alike; they are modules and classes of the same names."""

import numpy as np
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

TEXTS = np.array(["", "äöü", "end"], object)
SOUND = np.linspace(-1, 1, 36, dtype=np.float32).reshape(3, 1, 12)


class Asking:
    """A client that has these three arrays: what is given to the model, and its answer."""

    def __init__(self, triton, url, folder):
        self.triton, self.client = triton, triton.InferenceServerClient(url)
        self.x, self.y, self.z = (np.load(folder / f"{name}.npy") for name in "xyz")

    def given(self, array, **form):
        return [self._input("x", array, "FP32", **form)]

    def _input(self, name, array, datatype, **form):
        made = self.triton.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, **form)
        return made

    def check(self, answer, names="yz"):
        for name, want in (("y", self.y), ("z", self.z)):
            got = answer.as_numpy(name)
            if name in names:
                assert got.dtype == want.dtype
                assert got.tobytes() == want.tobytes()
            else:
                assert got is None

    def ask_for_health_and_loading(self):
        assert self.client.is_server_live()
        assert self.client.is_server_ready()
        assert self.client.is_model_ready("rows")
        assert self.client.is_model_ready("rows", "1")
        self.client.unload_model("triton")
        assert not self.client.is_model_ready("triton")
        self.client.load_model("triton")
        assert self.client.is_model_ready("triton")

    def ask_for_all_types(self, datatypes):
        """Ask a model whose inputs have these types, by name."""
        arrays = {name: TEXTS if kind == "BYTES" else np.array([0, 1, 1], triton_to_np_dtype(kind)) for name, kind in datatypes.items()}
        answer = self.client.infer("types", [self._input(name, array, datatypes[name]) for name, array in arrays.items()])
        assert [text.decode() for text in answer.as_numpy("out_BYTES")] == TEXTS.tolist()
        assert answer.as_numpy("out_FP16").tolist() == [0, 1, 1]
        assert answer.as_numpy("out_BOOL").tolist() == [False, True, True]

    def ask_in_sequences(self):
        alone = [
            self._step(9, sequence_start=True, sequence_end=True),
            self._step(9, sequence_start=True),
            self._step(9),
            self._step(9, sequence_end=True),
        ]
        assert alone[0] == alone[1]
        assert len(set(alone)) == 3
        turns = [[self._step(name, sequence_start=n == 0, sequence_end=n == 2) for name in (5, "five")] for n in range(3)]
        assert turns == [[value, value] for value in alone[1:]]
        assert "sequence 5 of model 'lstm' is not open" in fault_of(lambda: self._step(5))

    def _step(self, sequence, **flags):
        return self.client.infer("lstm", [self._input("input", SOUND, "FP32")], sequence_id=sequence, **flags).as_numpy("output").item()

    def ask_wrongly(self):
        assert "expected float[N, 4]" in fault_of(lambda: self.client.infer("rows", self.given(self.x.reshape(-1))))


def fault_of(call):
    """Return what a call that must fail says."""
    try:
        call()
    except InferenceServerException as error:
        return error.message()
    raise AssertionError("it has an answer")

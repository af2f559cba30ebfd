"""Magika, as its README uses it, on contents of many types: what it takes each for, and how sure it is."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tempfile
import wave
import zipfile
from pathlib import Path

from magika import Magika
from PIL import Image

SOURCES = {
    "python": "import sys\n\ndef main(path: str) -> None:\n    for line in open(path):\n        print(line.strip())\n\nmain(sys.argv[1])\n",
    "c": '#include <stdio.h>\n\nint main(int argc, char **argv) {\n    printf("%d\\n", argc);\n    return 0;\n}\n',
    "json": json.dumps({"name": "cluster", "nodes": [{"id": n, "cores": 2 * n} for n in range(9)]}, indent=1),
    "html": "<!DOCTYPE html>\n<html><head><title>A page</title></head><body><h1>Hello</h1><p>text</p></body></html>\n",
    "shell": '#!/bin/bash\nset -e\nfor f in *.txt; do\n  wc -l "$f" | sort\ndone\n',
    "markdown": "# Title\n\nSome *text* with a [link](https://example.org).\n\n- one\n- two\n",
    "csv": "name,age,town\n" + "".join(f"person{n},{20 + n},town{n % 7}\n" for n in range(40)),
    "rust": 'fn main() {\n    let mut v: Vec<u32> = Vec::new();\n    v.push(3);\n    println!("{:?}", v);\n}\n',
    "ini": "[server]\nport = 8080\nhost = localhost\n\n[log]\nlevel = info\n",
    "words": "It was a quiet morning, and nobody had expected the letter that came with the first post. " * 4,
}


def picture(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.linear_gradient("L").resize((120, 80)).save(stream, kind)
    return stream.getvalue()


def sound() -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        file.writeframes(bytes(range(256)) * 40)
    return stream.getvalue()


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(zipfile.ZipInfo("a.txt"), SOURCES["words"])
    return stream.getvalue()


def main() -> None:
    contents = {name: text.encode() for name, text in SOURCES.items()}
    contents |= {kind: picture(kind) for kind in ("PNG", "JPEG", "BMP", "GIF")}
    packed = contents["words"] * 30
    contents |= {"wav": sound(), "zip": archive(), "gzip": gzip.compress(packed, mtime=0), "bzip2": bz2.compress(packed)}
    magika = Magika()
    found = {name: magika.identify_bytes(content) for name, content in contents.items()}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.bin" for name in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_bytes(content)
        together = magika.identify_paths(paths)  # all in one batch
    answers = {name: {"label": str(result.output.label), "score": round(result.score, 3)} for name, result in found.items()}
    print(json.dumps({"one by one": answers, "together": [str(result.output.label) for result in together]}))


main()

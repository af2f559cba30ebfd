"""RapidOCR, as its README uses it, on pictures of several sizes: the lines it reads, where, and how sure it is."""

from __future__ import annotations

import json

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr import RapidOCR

PAGES = [
    (480, 160, ["Partition over machines", "block by block"]),
    (640, 240, ["The quick brown fox", "jumps over 13 lazy dogs", "INVOICE 2024-117"]),
    (360, 420, ["one", "Seventeen words", "1234567890", "a longer line here", "end."]),
    (900, 130, ["a single line that is much wider than the others are"]),
]


def drawn(width: int, height: int, lines: list[str]) -> np.ndarray:
    page = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(32)
    for number, line in enumerate(lines):
        pen.text((16, 16 + 64 * number), line, fill="black", font=font)
    return np.asarray(page)


def main() -> None:
    engine = RapidOCR()
    pages = []
    for page in PAGES:
        result = engine(drawn(*page))
        pages.append(
            [
                {"text": text, "box": np.asarray(box).round().tolist(), "score": round(float(score), 3)}
                for text, box, score in zip(result.txts, result.boxes, result.scores, strict=True)
            ]
        )
    print(json.dumps(pages))


main()

"""The DDP guide explains every field of the metrics, once."""

import re
from dataclasses import fields
from pathlib import Path

from thinwire import CodecMetrics, StepMetrics

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "ddp.md"


def test_the_guide_explains_every_field_once() -> None:
    section = GUIDE.read_text(encoding="utf-8").split("## Metrics\n")[1].split("\n**")[0]
    first_cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    explained = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(explained) == sorted(field.name for field in fields(StepMetrics))
    without = {field.name for field in fields(StepMetrics)} - {field.name for field in fields(CodecMetrics)}
    assert without == {"step", "exposed_seconds", "bytes_inside", "codecs"}  # as the guide says

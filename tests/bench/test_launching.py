"""Workers that fail are told of in one line."""

import pytest

from thinwire_lab.bench.launching import _reason, launched
from thinwire_lab.bench.results import BenchError


def test_the_line_that_names_an_error_is_the_reason() -> None:
    said = ["[host0 rank0] Traceback", "[host0 rank0] ValueError: no", "[host0] rank 0 ended with exit code 1"]
    assert _reason(said) == "[host0 rank0] ValueError: no"
    assert _reason(said[::2]) == "[host0 rank0] Traceback"
    assert _reason(said[2:]) == "[host0] rank 0 ended with exit code 1"
    assert _reason([]) == "they said nothing"


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_workers_that_fail() -> None:
    with pytest.raises(BenchError, match=r"thinwire_lab\.bench\.nowhere ended with code 1: .*No module named"):
        launched("thinwire_lab.bench.nowhere", {}, 1, "none")

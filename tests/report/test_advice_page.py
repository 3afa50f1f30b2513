"""The page of an advice stands alone and has its plots."""

from pathlib import Path

import pytest

from tests.planner.profiles import thin
from thinwire.planner.advice import advice_on
from thinwire_lab.report.advice import write_page


def test_the_page_has_plots_and_says_what_is_predicted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "advice.html"
    write_page(advice_on(thin()), path)
    text = path.read_text(encoding="utf-8")
    assert text.count("<svg") == 2
    assert "Compress with qsgd(bits=4)" in text
    assert "pays up to" in text
    assert "nothing was run on more than 4 ranks" in text
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )

"""The table of errors agrees with what can be computed by hand."""

import pytest

from benchmarks.quantiser_errors import CHAINS, DISTRIBUTIONS, error, table


def test_uniform_levels_on_uniform_elements() -> None:
    # (u - r)(r - l) is 1 / (6 m^2) in the mean, elements have the square 1/3, and the largest of 512 is close to 1.
    assert error("qsgd(bits=4)", "uniform", draws=2) == pytest.approx(3 / (6 * 7**2), rel=0.03)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_fitted_levels_lose_least(distribution: str) -> None:
    fitted = error("alq(bits=3, start=1)", distribution, draws=1)
    assert fitted <= 1.03 * min(error(f"{name}(bits=3, norm=max)", distribution, 1) for name in ("qsgd", "nuqsgd"))


def test_a_row_has_a_figure_for_each_chain() -> None:
    *_, row = table([("Gaussian", 4, 512)], draws=1)
    assert len(row.split("|")) == len(CHAINS) + 3
    assert float(row.split("|")[4]) == pytest.approx(0.037, abs=0.002)

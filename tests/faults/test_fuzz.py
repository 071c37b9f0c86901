"""Whatever reads bytes of others takes bad ones by returning or by one line: no traceback, no hang, no blow-up of memory."""

import sys

import pytest

from tests.faults.fuzz import fuzz, parsers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory by the kernel")


def check(name, number, seed):
    counts, bad = fuzz(name, number, seed)
    assert bad == []
    assert sum(counts.values()) == number
    # Lines of a log that cannot be read are left out, and never refused; so is all of a run that the studio cannot show.
    assert counts["refused"] > 0 or name in ("logs", "studio, runs")


@pytest.mark.parametrize("name", sorted(parsers().keys() - {"Inception's weights", "command line"}))
def test_good_inputs_are_read(name, tmp_path):
    """Mutations of an input that is refused at once would test little."""
    parser = parsers()[name]
    for seed in parser.seeds:
        parser.read(seed, tmp_path)


@pytest.mark.parametrize("name", parsers())
def test_a_few_bad_inputs(name):
    check(name, 20 if name == "command line" else 200, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", parsers())
def test_ten_thousand_bad_inputs(name):
    check(name, 10_000, seed=0)

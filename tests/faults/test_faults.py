"""No fault costs a run: it resumes by the same command and ends with the bits of an undisturbed one."""

import sys

import pytest

from tests.faults.harness import FAULTS, inject

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks processes and limits their files")


def check(outcomes, number):
    assert sum(outcomes.values()) == number
    assert {outcome for _, outcome in outcomes} == {"the same bits"}, outcomes
    assert {fault for fault, _ in outcomes} == set(FAULTS)


def test_ten_faults(tmp_path):
    check(inject(tmp_path, 10, seed=1), 10)


@pytest.mark.slow
def test_a_hundred_faults(tmp_path):
    check(inject(tmp_path, 100, seed=0), 100)

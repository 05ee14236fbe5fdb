"""A life in a server of its own is a restart."""

from support.process import ALWAYS_FRESH, run_python


def test_process_elsewhere_has_other_hashes_and_addresses(tmp_path):
    """As a restart has them; what a job keeps by them is lost."""
    tells = "print(hash('text'), id(object))"
    ended = [
        run_python("-c", tells, folder=tmp_path, environment={"PYTHONHASHSEED": "random"}, elsewhere=elsewhere).stdout
        for elsewhere in (False, False, True)
    ]
    same, again, elsewhere = [one.split() for one in ended]
    assert len(same) == 2
    assert same == again or ALWAYS_FRESH.is_set()
    assert same[0] != elsewhere[0]
    assert same[1] != elsewhere[1]

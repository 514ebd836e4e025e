"""The page of attacks lists every file of attacks, by what its first line says."""

from attacks_page import PAGE, PLACES, find_attacks, render


def test_the_page_is_what_the_tests_say():
    assert PAGE.read_text() == render(), "run python tests/docs/attacks_page.py"


def test_each_file_says_in_a_sentence_who_attacks():
    for _, _, folder in PLACES:
        for attack in find_attacks(folder):
            assert attack.wish.endswith(".") and len(attack.wish.split()) > 5, attack.path

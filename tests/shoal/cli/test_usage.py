"""Wrong use of a command ends in one line with the way out; `test_typical_mistakes.py` has the most typical."""

import pytest
from support.fixtures import Refused


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("fly", "fly: no such command; see shoal --help"),
        ("continue", "continue: did you mean shoal run RUN --resume? no such command; see shoal --help"),
        ("verfy", "verfy: did you mean shoal verify? no such command; see shoal --help"),
        ("my.yaml", "my.yaml: did you mean shoal run my.yaml? no such command; see shoal --help"),
        ("--quick", "--quick: shoal has no such option; see shoal --help"),
        ("sweep", "shoal sweep: CONFIG|STUDY is missing, as in shoal sweep quickstart; see shoal sweep --help"),
        ("replay runs/x", "shoal replay: --round is missing; see shoal replay --help"),
        ("compare a b c", "shoal compare: takes no further argument, found c; see shoal compare --help"),
        ("run x --quickly", "--quickly: shoal run has no such option; see shoal run --help"),
        ("run x --until", "--until: needs a value; see shoal run --help"),
        ("run x --until soon", "--until: expected a whole number, found 'soon'; see shoal run --help"),
        ("sweep x --at-once 0", "--at-once: expected at least 1, found '0'; see shoal sweep --help"),
        ("table x --mean all", "--mean: must be one of nodes, rows, clients, found 'all'; see shoal table --help"),
        (
            "attack x --kind all",
            "--kind: must be one of membership, properties, inversion, found 'all'; see shoal attack --help",
        ),
        ("run x --resume=3", "--resume: takes no value; see shoal run --help"),
        ("table x --output y", "--output: did you mean --out? shoal table has no such option; see shoal table --help"),
    ],
)
def test_wrong_use_is_one_line(words: str, line: str, refused: Refused) -> None:
    assert refused(*words.split()) == f"shoal: {line}"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("run quickstart --clients=20 --dry-run", "partition.clients=20"),
        ("run quickstart --lr 0.1", "train.lr=0.1"),
        ("run quickstart --train.lr 0.1", "train.lr=0.1"),
        ("run quickstart --rounds 5", "rounds=5"),
        ("run quickstart --rounds", "rounds=VALUE"),
        ("prepare quickstart --dataset cora", "data.dataset=cora"),
        ("run quickstart --seed 3", "seed=3"),
        ("run --seeds 20 quickstart", "seeds=20 with shoal sweep quickstart"),
        ("sweep quickstart --repeat 2", "seed=0,1"),
    ],
)
def test_options_that_are_keys_say_so(words: str, meant: str, refused: Refused) -> None:
    assert f": write {meant}; shoal " in refused(*words.split())


def test_an_option_of_a_command_without_keys_is_no_key(refused: Refused) -> None:
    assert refused("report", "runs/x", "--rounds", "3").startswith("shoal: --rounds: shoal report has no such option; ")

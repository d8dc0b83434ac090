"""`setup` of a method is rehearsed before data is prepared, and refuses there what no data could change."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.errors import refused

from shoal.engine.config.config import Config
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError

Configure = Callable[..., Config]
OWN = """
from dataclasses import dataclass
from shoal import ShoalError
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    def setup(self, ctx):
        print("set up")
        {body}
        return super().setup(ctx)
"""


@pytest.fixture
def own(tmp_path: Path, configure: Configure) -> Callable[[str], Config]:
    """Gives a config of a method of one's own with a line in its `setup`, whose data is not prepared."""

    def write(body: str) -> Config:
        (tmp_path / "mine.py").write_text(OWN.format(body=body))
        return configure({"algorithm.name": f"{tmp_path / 'mine.py'}:Mine", "data.store": str(tmp_path / "stores")})

    return write


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("ctx.embedding", "line 10, in setup(): AttributeError: 'Context' object has no attribute 'embedding'"),
        ("width = ctx.width + 'a'", "line 10, in setup(): TypeError"),
        ("raise ShoalError('train.lr', 'expected less')", "train.lr: expected less"),
    ],
)
def test_a_method_that_fails_on_any_data_prepares_none(
    own: Callable[[str], Config], body: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ShoalError) as caught:
        run(own(body))
    assert says in caught.value.line
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in ("stores", "runs")) == []
    assert "set up" not in capsys.readouterr().out


def test_what_depends_on_the_data_is_left_to_the_data(own: Callable[[str], Config]) -> None:
    config = own("if ctx.classes != 5: raise ShoalError('data', f'expected 5 classes, got {ctx.classes}')")
    assert RunPlan.of(config)
    with refused("data", says="expected 5 classes"):
        run(config)


def test_a_method_that_needs_another_model_refuses_before_data(configure: Configure, tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    keys = {"algorithm.name": "fedsage_plus", "model.name": "sgc", "data.store": str(stores)}
    with refused("model.name", says="and sgc reads hops"):
        run(configure(keys))
    assert not stores.exists()


def test_a_large_model_is_not_built_for_it(configure: Configure) -> None:
    config = configure({"algorithm.name": "fedsage_plus", "model.name": "gamlp", "model.hidden": 256})
    with refused("model.name"):
        RunPlan.of(config)
    assert RunPlan.of(configure({"algorithm.name": "fedsage_plus", "model.name": "gamlp", "model.hidden": 4096}))

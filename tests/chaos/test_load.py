"""More processes than cores: nobody who is healthy may be taken for dead (E-1)."""

import pytest

from .facts import facts_of
from .rig import Rig, Setting

pytestmark = pytest.mark.chaos


def test_e1_fifteen_workers_on_few_cores(tmp_path, tell):
    """E-1: the CNN in 15 processes for two minutes; all are counted as there in every round."""
    keys = (
        "fleet.workers=15", "data.name=fmnist-mini", "model.name=cnn", "world.range_m=200",
        "testbed.links=free", "testbed.devices=free", "testbed.timeouts.gather_s=120",
        "stop.seconds=120", "stop.rounds=100000", "evaluate.every_s=30", "evaluate.samples=500",
    )  # fmt: skip
    with Rig(tmp_path, Setting(keys)) as rig:
        rig.start()
        rig.until(lambda: rig.rounds > 0, 240)
        rig.finish(400)
        assert rig.findings() == []
    alive = {record.alive for record in rig.records}
    facts = facts_of(rig.folder, 120.0)
    sizes = sorted(facts["rss_mb"].values())
    tell(
        f"{facts['rounds']} rounds in 120 s, alive {sorted(alive)}, {facts['endings']}, global "
        f"accuracy {facts['end_global']:.3f}, {sizes[0]} to {sizes[-1]} MB a process"
    )
    assert alive == {15}
    assert set(facts["endings"]) == {"DONE"}

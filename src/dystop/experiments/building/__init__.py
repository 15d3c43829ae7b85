"""Build what a configuration describes: samples, models, components, and a whole simulation."""

from dystop.experiments.building.components import (
    compression_of,
    describe_compression,
    describe_graph,
    describe_samples,
    fleet_json,
    message_bytes,
)
from dystop.experiments.building.models import (
    card_of,
    check_flower,
    make_trainer,
    measured,
    task_of,
    with_named_model,
    with_noted_base,
)
from dystop.experiments.building.samples import (
    attackers_of,
    check_label_flip,
    check_same_data,
    load_data,
    sample_owners,
    split_data,
    whole_data,
)
from dystop.experiments.building.simulation import (
    Built,
    build,
    build_each_setting,
)

__all__ = [
    "Built",
    "attackers_of",
    "build",
    "build_each_setting",
    "card_of",
    "check_flower",
    "check_label_flip",
    "check_same_data",
    "compression_of",
    "describe_compression",
    "describe_graph",
    "describe_samples",
    "fleet_json",
    "load_data",
    "make_trainer",
    "measured",
    "message_bytes",
    "sample_owners",
    "split_data",
    "task_of",
    "whole_data",
    "with_named_model",
    "with_noted_base",
]

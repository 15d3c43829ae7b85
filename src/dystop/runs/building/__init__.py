"""Build what a configuration describes: samples, models, components, and a whole simulation."""

from dystop.runs.building.components import (
    describe_graph,
    describe_samples,
    fleet_json,
)
from dystop.runs.building.exchange import (
    describe_exchange,
    exchange_of,
    message_bytes,
    with_wrong_labels,
)
from dystop.runs.building.models import (
    card_of,
    check_flower,
    make_trainer,
    measured,
    task_of,
    with_named_model,
    with_noted_base,
)
from dystop.runs.building.samples import (
    check_same_data,
    load_data,
    sample_owners,
    split_data,
    whole_data,
)
from dystop.runs.building.simulation import (
    Built,
    build,
    build_each_setting,
)

__all__ = [
    "Built",
    "build",
    "build_each_setting",
    "card_of",
    "check_flower",
    "check_same_data",
    "describe_exchange",
    "describe_graph",
    "describe_samples",
    "exchange_of",
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
    "with_wrong_labels",
]

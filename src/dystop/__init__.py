"""dystop: laboratory and runtime for asynchronous decentralized federated learning.

    import dystop

    for record in dystop.simulate(mechanism=dystop.DySTop(V=10), workers=30):
        print(record.round, record.clock_s, record.accuracy)

simulate, compare     run one mechanism, or several on the same seeds
load_run, load_model  read what `dystop run` has written
import_data           images, tables and data sets of other libraries
Mechanism, View, Plan write a mechanism of your own (docs/mechanisms.md)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_MODULES = {
    "ADPSGD": "dystop.mechanisms",
    "ATTACKS": "dystop.exchange.attacks",
    "Added": "dystop.record",
    "AsyDFL": "dystop.mechanisms",
    "AsyNG": "dystop.mechanisms",
    "Attack": "dystop.exchange.attacks",
    "BrainTorrent": "dystop.mechanisms",
    "CODECS": "dystop.exchange.codecs",
    "Callback": "dystop.runs.callbacks",
    "Capabilities": "dystop.types",
    "CapacityError": "dystop.errors",
    "Carried": "dystop.carried",
    "Classification": "dystop.training.tasks.task",
    "Codec": "dystop.exchange.codecs",
    "Comparison": "dystop.runs.results",
    "ConfigError": "dystop.errors",
    "DCliques": "dystop.mechanisms",
    "DPSGD": "dystop.mechanisms",
    "DATASETS": "dystop.data.catalogue",
    "DataError": "dystop.errors",
    "DataSource": "dystop.data.catalogue",
    "Dataset": "dystop.data.dataset",
    "DySTop": "dystop.mechanisms",
    "DystopError": "dystop.errors",
    "EarlyStopping": "dystop.runs.callbacks",
    "EpidemicLearning": "dystop.mechanisms",
    "Evaluation": "dystop.runs.callbacks",
    "FedAsync": "dystop.mechanisms",
    "FedAvg": "dystop.mechanisms",
    "FedHP": "dystop.mechanisms",
    "FedSA": "dystop.mechanisms",
    "FinishedRound": "dystop.recorders.recorder",
    "Fleet": "dystop.types",
    "GossipFL": "dystop.mechanisms",
    "HADFL": "dystop.mechanisms",
    "L2PL": "dystop.mechanisms",
    "Links": "dystop.plan",
    "LAWS": "dystop.control.laws",
    "Launcher": "dystop.testbed.setup.transports",
    "Law": "dystop.control.laws",
    "LoadedModel": "dystop.training.saved",
    "MECHANISMS": "dystop.mechanisms",
    "MODELS": "dystop.training.models.catalogue",
    "Mailbox": "dystop.types",
    "Matcha": "dystop.mechanisms",
    "Mechanism": "dystop.types",
    "Memory": "dystop.types",
    "Mix": "dystop.plan",
    "Model": "dystop.training.models.catalogue",
    "NextToken": "dystop.training.tasks.task",
    "Outcome": "dystop.types",
    "Plan": "dystop.plan",
    "PlanError": "dystop.errors",
    "ProgressBar": "dystop.runs.callbacks",
    "RULES": "dystop.exchange.rules",
    "Recorder": "dystop.recorders.recorder",
    "Regression": "dystop.training.tasks.task",
    "RoundRecord": "dystop.record",
    "Rule": "dystop.exchange.rules",
    "Run": "dystop.runs.results",
    "RunFolderError": "dystop.errors",
    "SAADFL": "dystop.mechanisms",
    "SampleKind": "dystop.training.tasks.task",
    "Simulation": "dystop.runs.simulation",
    "StorageError": "dystop.errors",
    "Timetable": "dystop.control.laws",
    "TASKS": "dystop.training.tasks.catalogue",
    "TRANSPORTS": "dystop.testbed.params",
    "Task": "dystop.training.tasks.task",
    "TrustError": "dystop.errors",
    "UserCodeError": "dystop.errors",
    "Values": "dystop.carried",
    "VerificationError": "dystop.errors",
    "View": "dystop.types",
    "WorkerMetrics": "dystop.runs.callbacks",
    "compare": "dystop.runs.api",
    "connect": "dystop.control.topology",
    "import_data": "dystop.data.importing",
    "join_links": "dystop.plan",
    "links": "dystop.plan",
    "load_model": "dystop.folders.trained_models",
    "load_run": "dystop.runs.results",
    "mix_of": "dystop.plan",
    "no_links": "dystop.plan",
    "param": "dystop.params",
    "ranked_candidates": "dystop.control.topology",
    "simulate": "dystop.runs.api",
    "size_weights": "dystop.control.aggregation",
}

__all__ = ["__version__", *_MODULES]

if TYPE_CHECKING:
    from dystop.carried import Carried as Carried
    from dystop.carried import Values as Values
    from dystop.control.aggregation import size_weights as size_weights
    from dystop.control.laws import LAWS as LAWS
    from dystop.control.laws import Law as Law
    from dystop.control.laws import Timetable as Timetable
    from dystop.control.topology import connect as connect
    from dystop.control.topology import ranked_candidates as ranked_candidates
    from dystop.data.catalogue import DATASETS as DATASETS
    from dystop.data.catalogue import DataSource as DataSource
    from dystop.data.dataset import Dataset as Dataset
    from dystop.data.importing import import_data as import_data
    from dystop.errors import CapacityError as CapacityError
    from dystop.errors import ConfigError as ConfigError
    from dystop.errors import DataError as DataError
    from dystop.errors import DystopError as DystopError
    from dystop.errors import PlanError as PlanError
    from dystop.errors import RunFolderError as RunFolderError
    from dystop.errors import StorageError as StorageError
    from dystop.errors import TrustError as TrustError
    from dystop.errors import UserCodeError as UserCodeError
    from dystop.errors import VerificationError as VerificationError
    from dystop.exchange.attacks import ATTACKS as ATTACKS
    from dystop.exchange.attacks import Attack as Attack
    from dystop.exchange.codecs import CODECS as CODECS
    from dystop.exchange.codecs import Codec as Codec
    from dystop.exchange.rules import RULES as RULES
    from dystop.exchange.rules import Rule as Rule
    from dystop.folders.trained_models import load_model as load_model
    from dystop.mechanisms import ADPSGD as ADPSGD
    from dystop.mechanisms import DPSGD as DPSGD
    from dystop.mechanisms import HADFL as HADFL
    from dystop.mechanisms import L2PL as L2PL
    from dystop.mechanisms import MECHANISMS as MECHANISMS
    from dystop.mechanisms import SAADFL as SAADFL
    from dystop.mechanisms import AsyDFL as AsyDFL
    from dystop.mechanisms import AsyNG as AsyNG
    from dystop.mechanisms import BrainTorrent as BrainTorrent
    from dystop.mechanisms import DCliques as DCliques
    from dystop.mechanisms import DySTop as DySTop
    from dystop.mechanisms import EpidemicLearning as EpidemicLearning
    from dystop.mechanisms import FedAsync as FedAsync
    from dystop.mechanisms import FedAvg as FedAvg
    from dystop.mechanisms import FedHP as FedHP
    from dystop.mechanisms import FedSA as FedSA
    from dystop.mechanisms import GossipFL as GossipFL
    from dystop.mechanisms import Matcha as Matcha
    from dystop.params import param as param
    from dystop.plan import Links as Links
    from dystop.plan import Mix as Mix
    from dystop.plan import Plan as Plan
    from dystop.plan import join_links as join_links
    from dystop.plan import links as links
    from dystop.plan import mix_of as mix_of
    from dystop.plan import no_links as no_links
    from dystop.record import Added as Added
    from dystop.record import RoundRecord as RoundRecord
    from dystop.recorders.recorder import FinishedRound as FinishedRound
    from dystop.recorders.recorder import Recorder as Recorder
    from dystop.runs.api import compare as compare
    from dystop.runs.api import simulate as simulate
    from dystop.runs.callbacks import Callback as Callback
    from dystop.runs.callbacks import EarlyStopping as EarlyStopping
    from dystop.runs.callbacks import Evaluation as Evaluation
    from dystop.runs.callbacks import ProgressBar as ProgressBar
    from dystop.runs.callbacks import WorkerMetrics as WorkerMetrics
    from dystop.runs.results import Comparison as Comparison
    from dystop.runs.results import Run as Run
    from dystop.runs.results import load_run as load_run
    from dystop.runs.simulation import Simulation as Simulation
    from dystop.testbed.params import TRANSPORTS as TRANSPORTS
    from dystop.testbed.setup.transports import Launcher as Launcher
    from dystop.training.models.catalogue import MODELS as MODELS
    from dystop.training.models.catalogue import Model as Model
    from dystop.training.saved import LoadedModel as LoadedModel
    from dystop.training.tasks.catalogue import TASKS as TASKS
    from dystop.training.tasks.task import Classification as Classification
    from dystop.training.tasks.task import NextToken as NextToken
    from dystop.training.tasks.task import Regression as Regression
    from dystop.training.tasks.task import SampleKind as SampleKind
    from dystop.training.tasks.task import Task as Task
    from dystop.types import Capabilities as Capabilities
    from dystop.types import Fleet as Fleet
    from dystop.types import Mailbox as Mailbox
    from dystop.types import Mechanism as Mechanism
    from dystop.types import Memory as Memory
    from dystop.types import Outcome as Outcome
    from dystop.types import View as View


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `dystop --help` must not wait for torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'dystop' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

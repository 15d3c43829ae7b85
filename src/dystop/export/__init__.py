"""Export of runs into other tools: tables, TensorBoard, Weights & Biases, MLflow.

`rows` turns records into rows of four tables. `sources` reads run folders, also while they grow.
The other modules are writers, one per format; each imports its package when it is used.
"""

from enum import StrEnum


class Format(StrEnum):
    """Where an export goes."""

    parquet = "parquet"
    csv = "csv"
    arrow = "arrow"
    tensorboard = "tensorboard"
    wandb = "wandb"
    mlflow = "mlflow"

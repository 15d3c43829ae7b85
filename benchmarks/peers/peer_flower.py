"""Flower: its simulation engine, FedAvg over two Ray actors with one torch thread each."""

import os

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")

from child import Report, Work, read_work
from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from nets import cnn

ACTORS = 2


class Counting(FedAvg):
    """FedAvg that notes the images behind each aggregation."""

    images = 0

    def aggregate_train(self, server_round, replies):
        """Average as usual, count the images of the replies."""
        replies = list(replies)
        good = [reply for reply in replies if not reply.has_error()]
        self.images = sum(reply.content["metrics"]["num-examples"] for reply in good)
        return super().aggregate_train(server_round, replies)


def config_of(work: Work) -> ConfigRecord:
    """What the workers must know of the work."""
    return ConfigRecord(
        {
            "data": str(work.data),
            "workers": work.workers,
            "batch": work.batch,
            "learning-rate": work.learning_rate,
        }
    )


def server_app(work: Work, report: Report, losses: list[float]) -> ServerApp:
    """All workers in every round; the hook for central evaluation only notes the time."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Counting(fraction_train=1.0, fraction_evaluate=0.0)

        def round_ended(server_round: int, arrays: ArrayRecord) -> None:
            if server_round > 0:
                report.round_ended(strategy.images)

        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(cnn().state_dict()),
            num_rounds=work.total_rounds,
            train_config=config_of(work),
            evaluate_fn=round_ended,
        )
        losses.extend(m["loss"] for m in result.train_metrics_clientapp.values())

    return app


def main() -> None:
    """Run the simulation."""
    work = read_work()
    report, losses = Report(work), []
    run_simulation(
        server_app=server_app(work, report, losses),
        client_app=client_app,
        num_supernodes=work.workers,
        backend_config={
            "init_args": {"num_cpus": ACTORS, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    report.send("flwr", f"FedAvg, {ACTORS} Ray actors x 1 thread", (losses[0], losses[-1]))


if __name__ == "__main__":
    main()

"""Ours: `dystop.simulate` over whole rounds of FedAvg, in which all workers train.

Besides training and averaging, every round moves the clock, draws the channel and writes a record.
"""

from child import Report, read_work

import dystop


def main() -> None:
    """Run the rounds; one more is planned than run, because the last one is always evaluated."""
    work = read_work()
    settings = [
        "data.partition=iid",
        f"training.batch={work.batch}",
        f"training.learning_rate={work.learning_rate}",
        f"evaluate.every_rounds={10 * work.total_rounds}",
    ]
    simulation = dystop.simulate(
        "fedavg",
        workers=work.workers,
        dataset=str(work.data),
        rounds=work.total_rounds + 1,
        overrides=settings,
    )
    report, losses, before = Report(work), [], 0
    for record in simulation:
        report.round_ended(record.samples_total - before)
        before = record.samples_total
        losses.append(record.loss)
        if record.round == work.total_rounds:
            break
    path = simulation.experiment.training.path
    report.send("dystop", f"FedAvg, path = {path}", (losses[0], losses[-1]))


if __name__ == "__main__":
    main()

"""Follow a simulation: a progress bar, numbers of your own for every worker, and an early end."""

import dystop


def recall_of_class_0(outputs, labels):
    """Return the share of the samples of class 0 that a model finds."""
    return (outputs.argmax(1) == 0)[labels == 0].mean()


class Spread(dystop.Callback):
    """Prints how far the models of the workers are from each other."""

    def on_evaluation(self, evaluation):
        record = evaluation.record
        print(f"round {record.round}: {record.accuracy:.1%} ± {record.get('accuracy_std'):.1%}")


metrics = dystop.WorkerMetrics(recall=recall_of_class_0)
stopping = dystop.EarlyStopping("test_loss", patience=3, min_change=0.01)
simulation = dystop.simulate(
    "dystop",
    workers=8,
    dataset="synthetic",
    model="softmax",
    rounds=400,
    evaluate={"every_rounds": 5},
    callbacks=[dystop.ProgressBar(), Spread(), metrics, stopping],
)
run = simulation.run()
print(f"stopped after round {run.records[-1].round}: {run.stop_reason}")
lowest, highest = metrics.values["recall"][-1].min(), metrics.values["recall"][-1].max()
print(f"recall of class 0: {lowest:.0%} to {highest:.0%} among the workers")

folder = simulation.save("runs/early")  # 'dystop resume runs/early' goes on with it
print(f"the model of {folder} has {dystop.load_model(folder).card.classes} classes")
assert run.stop_reason

"""Import a table, a folder of images and a torch data set, and train on each of them."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import dystop

rng = np.random.default_rng(0)

# A table: numbers and categories become features, a column says who measured.
with open("flats.csv", "w") as file:
    print("sensor,area,district,warm", file=file)
    for k in range(400):
        area, north = rng.uniform(20, 120), rng.random() < 0.5
        warm = "yes" if area / 100 + north + rng.normal(0, 0.2) > 1.1 else "no"
        print(f"s{k % 8},{area:.1f},{'north' if north else 'south'},{warm}", file=file)
table = dystop.import_data("flats.csv", target="warm", groups=["sensor"])
natural = {"partition": "column", "column": "sensor"}  # each worker is one sensor
run = dystop.simulate(workers=8, dataset=table, model="softmax", rounds=15, data=natural).run()
print(f"table:  {run.accuracy:.1%} of {table.class_names}")
assert run.accuracy > 0.7

# A folder of images, with a sub-folder for each class.
for k in range(60):
    kind = ("dark", "light")[k % 2]
    Path("photos", kind).mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 120, (12, 12), dtype=np.uint8) + (k % 2) * 120
    Image.fromarray(pixels.astype(np.uint8)).save(f"photos/{kind}/{k}.png")
images = dystop.import_data("photos", share=0.25)
run = dystop.simulate(workers=4, dataset=images, model="softmax", rounds=10).run()
print(f"images: {run.accuracy:.1%} of {images.class_names}")
assert run.accuracy > 0.7


class Spirals(torch.utils.data.Dataset):
    """Any torch data set will do: it gives pairs of input and target."""

    def __len__(self):
        return 300

    def __getitem__(self, k):
        if not 0 <= k < len(self):
            raise IndexError(k)
        angle, arm = k / 40, k % 3
        turned = angle + arm * 2.1
        return torch.tensor([np.cos(turned), np.sin(turned), angle], dtype=torch.float32), arm


spirals = dystop.import_data(Spirals(), name="spirals")
run = dystop.simulate(workers=4, dataset=spirals, model="mlp", rounds=10).run()
print(f"torch:  {run.accuracy:.1%} of {spirals.name}, {spirals.classes} classes")

try:
    from datasets import Dataset
except ImportError:
    print("Hugging Face: pip install 'dystop[huggingface]'")
else:
    rows = {
        "age": [20 + k % 50 for k in range(200)],
        "label": [int(k % 50 > 25) for k in range(200)],
    }
    people = dystop.import_data(Dataset.from_dict(rows))
    run = dystop.simulate(workers=4, dataset=people, model="softmax", rounds=10).run()
    print(f"Hugging Face: {run.accuracy:.1%}")

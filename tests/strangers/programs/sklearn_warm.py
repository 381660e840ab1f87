# needs: sklearn
# seconds: 120
"""scikit-learn fits on many threads and processes before and between the epochs."""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier

import penstock

rng = np.random.default_rng(0)
points = rng.normal(size=(2000, 16)).astype(np.float32)


class Assigned:
    def __init__(self):
        self.means = KMeans(4, n_init=2, random_state=0).fit(points)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return points[i], int(self.means.predict(points[i : i + 1])[0])


def main():
    data = Assigned()
    labels = data.means.predict(points)
    RandomForestClassifier(8, n_jobs=2, random_state=0).fit(points, labels)
    loader = penstock.DataLoader(data, batch_size=16, num_workers=2)
    for _ in range(2):
        got = np.concatenate([batch_labels for _, batch_labels in loader])
        np.testing.assert_array_equal(got, labels[:64])
        RandomForestClassifier(4, n_jobs=2, random_state=0).fit(points, labels)
    print("ok")


if __name__ == "__main__":
    main()

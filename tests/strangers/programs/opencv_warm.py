# needs: cv2
# quick
"""I resized a few pictures with OpenCV to look at them; then the loader does the same in workers."""

import cv2
import numpy as np

import penstock


def thumbnail(i):
    image = np.full((600, 800, 3), i % 256, np.uint8)
    return cv2.resize(cv2.GaussianBlur(image, (9, 9), 0), (64, 48), interpolation=cv2.INTER_AREA)


class Thumbnails:
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return thumbnail(i)


for i in range(8):
    thumbnail(i)
loader = penstock.DataLoader(Thumbnails(), batch_size=8, num_workers=2)
for _ in range(2):
    means = [float(image.mean()) for batch in loader for image in batch]
    assert means == [float(i) for i in range(48)], means
print("ok")

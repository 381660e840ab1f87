"""Loads images as Caffe's data layers do: decodes, crops, mirrors, and writes them directly into the batch.

Needs `pip install ".[image]"`, which installs simplejpeg (libjpeg-turbo), OpenCV for resizing, and Pillow for formats
other than JPEG.
"""

import penstock._pixels  # noqa: F401 - first: its error names the library that is missing

# isort: split
from penstock.errors import ImageError
from penstock.image._dataset import ImageFolder, Images
from penstock.image._loader import loader
from penstock.image._transform import Transform

__all__ = ["ImageError", "ImageFolder", "Images", "Transform", "loader"]

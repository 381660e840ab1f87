"""Images as in Caffe's data layers: decoded, cropped, mirrored, and written straight into the batch.

Needs `pip install ".[image]"`: simplejpeg (libjpeg-turbo), OpenCV for resizing, Pillow for other formats.
"""

try:
    import cv2  # noqa: F401
    import PIL  # noqa: F401
    import simplejpeg  # noqa: F401
except ImportError as error:
    raise ImportError(f'penstock.image needs {error.name}: pip install ".[image]" in a clone of penstock') from error

from penstock.errors import ImageError
from penstock.image._dataset import ImageFolder, Images
from penstock.image._transform import Transform

__all__ = ["ImageError", "ImageFolder", "Images", "Transform"]

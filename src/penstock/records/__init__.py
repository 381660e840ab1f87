"""The files of MXNet and Caffe: `.rec` (RecordIO) and LMDB of Datum, read and written."""

from penstock.errors import RecordError
from penstock.records._caffe import CaffeLMDB, read_caffe_mean, write_caffe_lmdb
from penstock.records._recordfile import Record, RecordFile, RecordStream, RecordWriter

__all__ = [
    "CaffeLMDB",
    "Record",
    "RecordError",
    "RecordFile",
    "RecordStream",
    "RecordWriter",
    "read_caffe_mean",
    "write_caffe_lmdb",
]

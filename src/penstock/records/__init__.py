"""Reads and writes the files of MXNet and Caffe: `.rec` files (RecordIO), and LMDB files of Datum messages."""

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

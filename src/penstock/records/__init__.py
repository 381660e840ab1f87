"""The files of MXNet and Caffe: `.rec` (RecordIO) and LMDB of Datum, read and written."""

from penstock.errors import RecordError
from penstock.records.recordfile import Record, RecordFile
from penstock.records.writer import RecordWriter

__all__ = ["Record", "RecordError", "RecordFile", "RecordWriter"]
